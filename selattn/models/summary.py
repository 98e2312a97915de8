"""What a model consists of, told from its config alone: nothing is allocated, whatever its size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from selattn.errors import SelattnError
from selattn.models.causal_lm import SelectiveForCausalLM
from selattn.models.config import SelectiveConfig

PARTS = ("embeddings", "positions", "attention", "selection projections", "mlp", "norms", "head")

# The part that a parameter belongs to, by the first of these that occurs in its name.
_PARTS = {
    "embed_tokens": "embeddings",
    "embed_positions": "positions",
    "selection_": "selection projections",
    "norm": "norms",
    "attention.": "attention",
    "mlp.": "mlp",
    "lm_head": "head",
}


def parameters_by_part(config: SelectiveConfig) -> dict[str, int]:
    """The number of parameters of each part, in the order of `PARTS`; what is tied is counted once."""
    with torch.device("meta"):
        model = SelectiveForCausalLM(config)
    counts = dict.fromkeys(PARTS, 0)
    for name, parameter in model.named_parameters():  # which names a tied parameter once
        counts[next(part for piece, part in _PARTS.items() if piece in name)] += parameter.numel()
    return counts


def read_config(folder: Path) -> SelectiveConfig:
    """The config of a saved model; one clear line for a folder that has none of ours."""
    path = folder / "config.json"
    found = read_json(path)
    kind = found.pop("model_type", None)
    if kind != SelectiveConfig.model_type:
        raise SelattnError(f"{path} is of a model of type {kind!r}, not of a selattn model")
    try:
        return SelectiveConfig(**found)
    except SelattnError as error:
        raise SelattnError(f"{path}: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise SelattnError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise SelattnError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise SelattnError(f"{path} must hold a JSON object, not a {type(found).__name__}")
    return found
