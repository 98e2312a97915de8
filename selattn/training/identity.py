"""When two runs are the same training, so that one model serves both: a key of what decides the weights and the loss.

What a run is called, how often it is evaluated, logged and saved, and how it is shared out among devices is no part of
it; nor is where its text lies, so that a run can be found again from another folder. Whether the text is the same is
told by the checksums in the training record.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selattn.errors import SelattnError
from selattn.models import SelectiveConfig
from selattn.training.config import RunConfig, TextData

_WHOLE = ("optimizer", "schedule", "shrink")
_PARTS = {"batch": ("size",), "evaluation": ("rows", "target"), "machine": ("precision",), "start": ("ramp",)}


def training_key(run: Mapping[str, Any], after: str | None = None) -> str:
    """The key of a run, as `RunConfig.to_dict` or a training record has it.

    Args:
        run: its settings; those that an earlier version did not have are at their defaults.
        after: the key of the training whose model it begins with; None for new weights.
    """
    found = {**deciding_settings(run), "after": after}
    return hashlib.blake2b(json.dumps(found, sort_keys=True).encode(), digest_size=10).hexdigest()


def deciding_settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that decide its weights and its loss, seed included; equal ones are written alike."""
    whole = RunConfig("", TextData()).to_dict()
    if unknown := run.keys() - whole.keys():
        raise SelattnError(f"a run has no settings {', '.join(sorted(unknown))}: another version wrote this one")
    found: dict[str, Any] = {name: {**whole[name], **run.get(name, {})} for name in (*_WHOLE, *_PARTS)}
    found = {name: {key: found[name][key] for key in _PARTS.get(name, found[name])} for name in found}
    found |= {"data": _data(run["data"]), "model": _model(run.get("model", {}))}
    return found | {"seed": run.get("seed", 0)}


def source_name(source: str) -> str:
    """What a text is called wherever it lies: the name of a file or folder, or the source itself."""
    path = Path(source)
    return path.name if path.exists() or ("/" in source and not source.startswith("hub:")) else source


def _data(given: Mapping[str, Any]) -> dict[str, Any]:
    if "source" not in given:  # a task is its settings
        return dict(given)
    usual = dataclasses.asdict(TextData()) if given.get("kind") == "text" else {}
    found = {**usual, **given}
    return {**found, "source": source_name(found["source"])}


def _model(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are not those of every model."""
    listed = {name: list(value) if isinstance(value, list | tuple) else value for name, value in given.items()}
    usual: dict[str, Any] = {name: getattr(SelectiveConfig, name, None) for name in listed}
    usual = {name: list(value) if isinstance(value, tuple) else value for name, value in usual.items()}
    return {name: value for name, value in listed.items() if value != usual[name]}
