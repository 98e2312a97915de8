"""The zoo: models that come with the package, called `zoo:NAME`, also in `from_pretrained`.

The zoo is the folder that $SELATTN_ZOO names; else the one inside an installed package, or the repository's `zoo/` if
selattn runs from there. Each model of it is a folder with safetensors in bf16, `config.json`, the record of its
training, and its tokenizer if it reads text.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from selattn.errors import SelattnError
from selattn.utils.suggest import nearest

PREFIX, VARIABLE = "zoo:", "SELATTN_ZOO"
SHIPPED = Path(__file__).parents[1] / "zoo"  # setup.py puts it there in a wheel; a repository has none


def zoo_folder() -> Path:
    """Where the zoo is, or would be."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    return SHIPPED if SHIPPED.is_dir() else SHIPPED.parents[1] / "zoo"


def zoo_models() -> dict[str, Path]:
    """The models of the zoo by name."""
    return {path.parent.name: path.parent for path in sorted(zoo_folder().glob("*/config.json"))}


def from_zoo(name: Any) -> Any:
    """What `from_pretrained` is to read: the folder of `zoo:NAME`, and anything else as it is."""
    return in_zoo(name.removeprefix(PREFIX)) if isinstance(name, str) and name.startswith(PREFIX) else name


def in_zoo(name: str) -> Path:
    """The folder of a model of the zoo; one line if it has none of that name."""
    models = zoo_models()
    if name in models:
        return models[name]
    chosen = os.environ.get(VARIABLE)
    if not models:
        hint = f"name another folder in {VARIABLE}, or unset it" if chosen else f"install selattn, or set {VARIABLE}"
        raise SelattnError(f"there is no zoo at {zoo_folder()}: {hint}")
    where = f" in {chosen} ({VARIABLE})" if chosen else ""
    near = nearest(name, models)
    hint = f"there are {', '.join(models)}" if near is None else f"did you mean {PREFIX}{near}?"
    raise SelattnError(f"unknown model {PREFIX}{name}{where}; {hint}")
