"""Model folders of stock decoders, selective or not: how `selattn.models.loading` reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from selattn.cache import Budgets
from selattn.data.tokenizer import Tokenizer, has_tokenizer, read_tokenizer
from selattn.errors import SelattnError, first_line
from selattn.models.stock.classes import config_class, family_of_config, model_class
from selattn.models.stock.families import FAMILIES, SELECTIVE, check_config
from selattn.models.stock.make import make_selective
from selattn.models.stock.model import describe
from selattn.models.stock.settings import StockSettings
from selattn.models.weights import CONFIG, read_headers, weight_files
from selattn.utils.files import read_json

STOCK_POLICY = "window+4"  # of a model that selects nothing, unless another is named

_FAULTS = {
    "missing_keys": "lacks {} of its model's weights",
    "unexpected_keys": "has {} weights that its config has no place for",
    "mismatched_keys": "has {} weights of another shape than its config says",
}


class StockFormat:
    """Folders of transformers' decoders. One that is not selective gets the evicting cache, and nothing else."""

    def owns(self, folder: Path) -> bool:
        """By the type that config.json names."""
        family = FAMILIES.get(str(read_json(folder / CONFIG).get("model_type")).removeprefix(SELECTIVE))
        return family is not None and not family.seq2seq  # the commands read decoders

    def config(self, folder: Path) -> Any:
        """The config of the selective model; a stock one selects nothing."""
        if "auto_map" in read_json(folder / CONFIG):
            raise SelattnError(f"{folder / CONFIG} asks for code of its own (auto_map), which is not run: remove that")
        try:
            found: Any = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        except Exception as error:  # whatever a config class raises for what it does not understand
            raise SelattnError(f"{folder / CONFIG}: {first_line(error)}") from error
        if getattr(found, "selattn", None) is None:
            family = FAMILIES[found.model_type]
            check_config(found, str(folder))
            found.__class__ = config_class(family)
            found.selattn = StockSettings(cache_policy=STOCK_POLICY).to_dict()
        StockSettings.from_dict(found.selattn)
        return found

    def describe(self, config: Any) -> Any:
        """What the config says of the model."""
        return describe(config)

    def skeleton(self, config: Any) -> nn.Module:
        """The model on the device `meta`."""
        with torch.device("meta"):
            return model_class(family_of_config(config))(config)

    def check(self, folder: Path, config: Any) -> None:
        """By transformers, which knows older names of weights, on the device `meta`: only headers are read."""
        _read(folder, dtype="auto", device_map="meta")

    def model(self, folder: Path, dtype: torch.dtype | None) -> Any:
        """The model with all its weights; a stock one with the evicting cache."""
        self.config(folder)
        model = _read(folder, dtype="auto" if dtype is None else dtype)
        if model.config.model_type.startswith(SELECTIVE):
            return model
        return make_selective(model, selection=None, cache_policy=STOCK_POLICY)

    def has_tokenizer(self, folder: Path) -> bool:
        """Whether one lies beside the weights."""
        return has_tokenizer(folder)

    def tokenizer(self, folder: Path, vocab_size: int) -> Tokenizer:
        """What lies beside the weights. Models may know more tokens than their tokenizers, and never fewer."""
        return fitting(read_tokenizer(folder), folder, vocab_size)

    def files(self, folder: Path) -> list[Path]:
        """The weights, then the config."""
        there = any(folder.glob("*.safetensors"))  # a config alone can be described
        return [*(weight_files(folder) if there else []), folder / CONFIG]

    def save_pruned(self, folder: Path, to: Path, budgets: Budgets, policy: str) -> None:
        """The model and its tokenizer, saved by transformers."""
        model = self.model(folder, None)
        settings = StockSettings.from_dict(model.config.selattn)
        model.config.selattn = replace(settings, cache_budgets=budgets.to_json(), cache_policy=policy).to_dict()
        model.save_pretrained(to)
        if self.has_tokenizer(folder):
            self.tokenizer(folder, model.config.vocab_size).save_pretrained(to)


def fitting(found: Tokenizer, where: Path, vocab_size: int) -> Tokenizer:
    """The same tokenizer, if a model with so many tokens can read what it writes."""
    if found.vocab_size > vocab_size:
        raise SelattnError(
            f"the tokenizer in {where} has {found.vocab_size} tokens, and its model knows {vocab_size}: "
            "put the one there that the model was trained with"
        )
    return found


def _read(folder: Path, **options: Any) -> Any:
    """What transformers loads from the folder; one line unless its weights are those of the config's model."""
    read_headers(folder)
    options |= {"use_safetensors": True, "trust_remote_code": False}
    options["ignore_mismatched_sizes"] = True  # so that these are named, and refused below
    try:
        found: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    except Exception as error:  # a weight that cannot be read, whatever library says so
        raise SelattnError(f"cannot read the weights in {folder}: {first_line(error)}") from error
    model, told = found
    for kind, what in _FAULTS.items():
        if names := sorted(key if isinstance(key, str) else str(key[0]) for key in told.get(kind) or ()):
            raise SelattnError(f"{folder} {what.format(len(names))}, such as {names[0]}: save it again")
    return model
