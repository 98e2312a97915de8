"""Names of models on the command line: a folder, the folder of a training run, or `zoo:NAME`.

The zoo is the folder `zoo/` beside the package, or where $SELATTN_ZOO says. Each model of it is a folder with
safetensors in bf16, `config.json`, the record of its training, and its tokenizer if it reads text.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from selattn.errors import SelattnError

PREFIX, VARIABLE = "zoo:", "SELATTN_ZOO"


def zoo_folder() -> Path:
    """Where the zoo is, or would be."""
    return Path(os.environ.get(VARIABLE) or Path(__file__).parents[2] / "zoo").expanduser()


def zoo_models() -> dict[str, Path]:
    """The models of the zoo by name."""
    return {path.parent.name: path.parent for path in sorted(zoo_folder().glob("*/config.json"))}


def find_model(name: str | Path) -> Path:
    """The folder of a model that a user names; one line if there is none."""
    name = str(name)
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


def _in_zoo(name: str) -> Path:
    models = zoo_models()
    if name in models:
        return models[name]
    if not models:
        raise SelattnError(f"there is no zoo at {zoo_folder()}: it comes with the repository; or set {VARIABLE}")
    near = difflib.get_close_matches(name, models, 1)
    advice = f"did you mean {PREFIX}{near[0]}?" if near else f"there are {', '.join(models)}"
    raise SelattnError(f"unknown model {PREFIX}{name}; {advice}")
