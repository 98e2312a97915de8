"""The zoo: small trained models in a checkout, which `load("zoo:NAME")` reads.

The zoo is the folder that $SELATTN_ZOO names, else `zoo/` of the checkout that selattn runs from. A wheel has no zoo.
Each model is a folder with safetensors in bf16, `config.json`, the record of its training, and its tokenizer if
it reads text.
"""

from __future__ import annotations

import os
from pathlib import Path

from selattn.errors import SelattnError, nearest

PREFIX, VARIABLE = "zoo:", "SELATTN_ZOO"
CHECKOUT = Path(__file__).parents[2]  # of an installed wheel it is site-packages, where `zoo` may be another package


def zoo_folder() -> Path | None:
    """The folder of the zoo; None for an installed wheel without $SELATTN_ZOO."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser()
    return CHECKOUT / "zoo" if (CHECKOUT / "pyproject.toml").is_file() else None


def zoo_models() -> dict[str, Path]:
    """The models of the zoo by name."""
    folder = zoo_folder()
    return {} if folder is None else {path.parent.name: path.parent for path in sorted(folder.glob("*/config.json"))}


def no_models() -> str:
    """The line for a zoo without models, with where to get them."""
    folder = zoo_folder()
    where = "selattn is installed without the zoo" if folder is None else f"there is no zoo at {folder}"
    return f"{where}: take the folder zoo/ from selattn's repository or its sdist, and set {VARIABLE} to its path"


def in_zoo(name: str) -> Path:
    """The folder of a model of the zoo; one line if it has none of that name."""
    models = zoo_models()
    if name in models:
        return models[name]
    if not models:
        raise SelattnError(no_models())
    chosen = os.environ.get(VARIABLE)
    where = f" in {chosen} ({VARIABLE})" if chosen else ""
    near = nearest(name, models)
    hint = f"there are {', '.join(models)}" if near is None else f"did you mean {PREFIX}{near}?"
    raise SelattnError(f"unknown model {PREFIX}{name}{where}; {hint}")
