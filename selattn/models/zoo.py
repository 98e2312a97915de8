"""Names of models: a folder, the folder of a training run, or `zoo:NAME`. `from_pretrained` takes the last, too.

The zoo is the folder that $SELATTN_ZOO names; else the one inside an installed package, or the repository's `zoo/` if
selattn runs from there. Each model of it is a folder with safetensors in bf16, `config.json`, the record of its
training, and its tokenizer if it reads text.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any

from selattn.errors import SelattnError

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


def find_model(name: str | Path) -> Path:
    """The folder of a model that a user names; one line if there is none."""
    name = str(name)
    if not name:
        raise SelattnError(f"the name of a model is empty: give a folder, or {PREFIX}NAME")
    if name.startswith(PREFIX):
        return _in_zoo(name.removeprefix(PREFIX))
    path = Path(name).expanduser()
    for folder in (path, path / "model"):  # a run's folder has its model inside
        if (folder / "config.json").is_file():
            return folder
    if path.is_dir():
        raise SelattnError(f"{path} has no config.json: it is no model, nor the folder of a run that has ended")
    hint = f"; did you mean {PREFIX}{name}?" if name in zoo_models() else ""
    raise SelattnError(f"there is no model {name}{hint or f'; give a folder, or {PREFIX}NAME'}")


def from_zoo(name: Any) -> Any:
    """What `from_pretrained` is to read: the folder of `zoo:NAME`, and anything else as it is."""
    return find_model(name) if isinstance(name, str) and name.startswith(PREFIX) else name


def _in_zoo(name: str) -> Path:
    models = zoo_models()
    if name in models:
        return models[name]
    chosen = os.environ.get(VARIABLE)
    if not models:
        advice = f"name another folder in {VARIABLE}, or unset it" if chosen else f"install selattn, or set {VARIABLE}"
        raise SelattnError(f"there is no zoo at {zoo_folder()}: {advice}")
    where = f" in {chosen} ({VARIABLE})" if chosen else ""
    near = difflib.get_close_matches(name, models, 1)
    advice = f"did you mean {PREFIX}{near[0]}?" if near else f"there are {', '.join(models)}"
    raise SelattnError(f"unknown model {PREFIX}{name}{where}; {advice}")
