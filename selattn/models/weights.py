"""Reading a saved model whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers.utils import logging

from selattn.errors import SelattnError, first_line
from selattn.models.causal_lm import SelectiveForCausalLM
from selattn.models.config import SelectiveConfig
from selattn.utils.files import read_json

CONFIG = "config.json"
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def read_config(folder: Path) -> SelectiveConfig:
    """The config of a saved model; one line if it is not that of one of ours."""
    path = folder / CONFIG
    found = read_json(path)
    kind = found.pop("model_type", None)
    if kind != SelectiveConfig.model_type:
        raise SelattnError(f"{path} is of a model of type {kind!r}, not of a selattn model")
    try:
        return SelectiveConfig(**found)
    except SelattnError as error:
        raise SelattnError(f"{path}: {error}") from error


def skeleton(config: SelectiveConfig) -> SelectiveForCausalLM:
    """The model without memory for its weights, on the device `meta`, whatever its size."""
    with torch.device("meta"):
        return SelectiveForCausalLM(config)


def load_whole(folder: Path, **options: Any) -> SelectiveForCausalLM:
    """A saved model with all its weights, and no others; `options` are those of `from_pretrained`.

    transformers draws weights that are missing at random, leaves out those that the config has no place for, and says
    so in its log only. Whoever measures such a model gets another result each time, or that of another model.
    """
    check_weights(folder, options.get("config") or read_config(folder))
    try:
        model: SelectiveForCausalLM = SelectiveForCausalLM.from_pretrained(folder, **options)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise SelattnError(f"cannot read the weights in {folder}: {first_line(error)}") from error
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' warnings and bars: what they warn of is checked here, and refused."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def check_weights(folder: Path, config: SelectiveConfig) -> None:
    """One line for a folder whose weights are not those of the config's model. Only the files' headers are read."""
    wanted = {name: list(weight.shape) for name, weight in skeleton(config).state_dict().items()}
    tied = set(SelectiveForCausalLM._tied_weights_keys) if config.tie_word_embeddings else set()
    found = read_headers(folder)
    _refuse(folder, "lacks {} of its model's weights", wanted.keys() - found.keys() - tied)
    _refuse(folder, "has {} weights that its config has no place for", found.keys() - wanted.keys())
    for name, (shape, dtype) in found.items():
        if shape != wanted[name]:
            raise SelattnError(
                f"cannot read the weights in {folder}: {name} is {shape}, and by the config it is {wanted[name]}"
            )
        if not dtype.startswith(("F", "BF")):
            raise SelattnError(f"cannot read the weights in {folder}: {name} holds {dtype}, and no fractions")


def read_headers(folder: Path) -> dict[str, tuple[list[int], str]]:
    """Name, shape and type of each weight, from one file or from several with an index."""
    found = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118 (it is no dict)
                    part = weights.get_slice(name)
                    found[name] = (list(part.get_shape()), str(part.get_dtype()))
        except (OSError, SafetensorError) as error:
            raise SelattnError(f"cannot read the weights in {folder}: {file.name}: {first_line(error)}") from error
    return found


def weight_files(folder: Path) -> list[Path]:
    """The files with the weights, as transformers chooses them."""
    if (folder / FILE).is_file():
        return [folder / FILE]
    if not (folder / INDEX).is_file():
        pickled = next((file.name for pattern in PICKLES for file in sorted(folder.glob(pattern))), None)
        why = "" if pickled is None else f"; {pickled} can run code when it is read, and is not: save it as safetensors"
        raise SelattnError(f"cannot read the weights in {folder}: there is no {FILE}{why}")
    places = read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise SelattnError(f"cannot read the weights in {folder}: {INDEX} does not say in which file each weight is")
    return [folder / name for name in sorted(set(places.values()))]


def _refuse(folder: Path, what: str, names: Iterable[str]) -> None:
    if names := sorted(names):
        raise SelattnError(f"{folder} {what.format(len(names))}, such as {names[0]}: save it again")
