"""Reading a saved model whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from selattn.errors import SelattnError
from selattn.models.causal_lm import SelectiveForCausalLM
from selattn.models.config import SelectiveConfig
from selattn.models.summary import read_config, read_json

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


def load_whole(folder: Path, **options: Any) -> SelectiveForCausalLM:
    """A saved model with all its weights, and no others; `options` are those of `from_pretrained`.

    transformers draws weights that are missing at random, leaves out those that the config has no place for, and says
    so in its log only. Whoever measures such a model gets another result each time, or that of another model.
    """
    check_weights(folder, options.get("config") or read_config(folder))
    try:
        model: SelectiveForCausalLM = SelectiveForCausalLM.from_pretrained(folder, **options)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise SelattnError(f"cannot read the weights in {folder}: {_first_line(error)}") from error
    return model


def check_weights(folder: Path, config: SelectiveConfig) -> None:
    """One line for a folder whose weights are not those of the config's model. Only the files' headers are read."""
    with torch.device("meta"):
        model = SelectiveForCausalLM(config)
    wanted = {name: list(weight.shape) for name, weight in model.state_dict().items()}
    tied = set(SelectiveForCausalLM._tied_weights_keys) if config.tie_word_embeddings else set()
    found = _headers(folder)
    _refuse(folder, "lacks {} of its model's weights", wanted.keys() - found.keys() - tied)
    _refuse(folder, "has {} weights that its config has no place for", found.keys() - wanted.keys())
    for name, (shape, dtype) in found.items():
        if shape != wanted[name]:
            raise SelattnError(
                f"cannot read the weights in {folder}: {name} is {shape}, and by the config it is {wanted[name]}"
            )
        if not dtype.startswith(("F", "BF")):
            raise SelattnError(f"cannot read the weights in {folder}: {name} holds {dtype}, and no fractions")


def _headers(folder: Path) -> dict[str, tuple[list[int], str]]:
    """Name, shape and type of each weight, from one file or from several with an index."""
    found = {}
    for file in _files(folder):
        try:
            with safe_open(file, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118 (it is no dict)
                    part = weights.get_slice(name)
                    found[name] = (list(part.get_shape()), str(part.get_dtype()))
        except (OSError, SafetensorError) as error:
            raise SelattnError(f"cannot read the weights in {folder}: {file.name}: {_first_line(error)}") from error
    return found


def _files(folder: Path) -> list[Path]:
    """The files with the weights, as transformers chooses them."""
    if (folder / FILE).is_file():
        return [folder / FILE]
    if not (folder / INDEX).is_file():
        raise SelattnError(f"cannot read the weights in {folder}: there is no {FILE}")
    places = read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise SelattnError(f"cannot read the weights in {folder}: {INDEX} does not say in which file each weight is")
    return [folder / name for name in sorted(set(places.values()))]


def _refuse(folder: Path, what: str, names: Iterable[str]) -> None:
    if names := sorted(names):
        raise SelattnError(f"{folder} {what.format(len(names))}, such as {names[0]}: save it again")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
