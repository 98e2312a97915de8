"""The settings of selattn in a saved `config.json`: our decoder has them at the top, a stock model under `selattn`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selattn.models.weights import CONFIG
from selattn.utils.files import read_json, write_json

_STOCK = {"selection_strength": "strength"}  # what our decoder's config calls otherwise


def change_config(folder: Path, changes: Mapping[str, Any]) -> None:
    """Write settings, by the names that our decoder has for them, into the config of a saved model."""
    found = read_json(folder / CONFIG)
    if isinstance(found.get("selattn"), dict):
        inside = {_STOCK.get(name, name): value for name, value in changes.items()}
        found = {**found, "selattn": {**found["selattn"], **inside}}
    else:
        found = {**found, **changes}
    write_json(folder / CONFIG, found)
