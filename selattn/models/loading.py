"""From the name of a model to its folder, config, weights and tokenizer: found in one place, each read once.

    found = load("zoo:memory")      # a folder, the folder of a training run, zoo:NAME, or a model itself
    found.description.layers        # from the config alone; weights are not read before they are asked for
    found.model                     # a selattn.models.seam.LanguageModel, in evaluation mode
    found.tokenizer                 # its own

What a folder holds is told by the first of `FORMATS` that knows it. To read another kind of model, write a `Format` and
add it there; nothing else has to change.
"""

from __future__ import annotations

import functools
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from selattn.cache import Budgets
from selattn.data.tokenizer import Tokenizer, has_tokenizer, read_tokenizer
from selattn.errors import SelattnError
from selattn.models.config import SelectiveConfig
from selattn.models.seam import Description, LanguageModel
from selattn.models.stock.families import FAMILIES
from selattn.models.stock.format import StockFormat
from selattn.models.stock.gguf import SUFFIX, GgufFormat
from selattn.models.stock.llama2c import Llama2cFormat
from selattn.models.weights import CONFIG, check_weights, load_whole, quiet, read_config, skeleton
from selattn.models.zoo import PREFIX, in_zoo, zoo_models
from selattn.utils.files import digest, read_json

TRAINING = "training_record.json"  # beside a trained model
_ROUNDED = 128  # a vocabulary may be rounded up to a multiple of this


class Format(Protocol):
    """One kind of model folder, and how it is read."""

    def owns(self, folder: Path) -> bool:
        """Whether the folder holds a model of this kind; raises for a file that cannot be read."""

    def config(self, folder: Path) -> PreTrainedConfig:
        """The config that lies in the folder, checked."""

    def describe(self, config: Any) -> Description:
        """What the config says of the model."""

    def skeleton(self, config: Any) -> nn.Module:
        """The model without memory for its weights, on the device `meta`."""

    def check(self, folder: Path, config: Any) -> None:
        """Raise unless the weights are all there and those of the config's model; none of them is loaded."""

    def model(self, folder: Path, dtype: torch.dtype | None) -> LanguageModel:
        """The model with all its weights; in the dtype in which they are stored if that is None."""

    def has_tokenizer(self, folder: Path) -> bool:
        """Whether there is a tokenizer in the folder."""

    def tokenizer(self, folder: Path, vocab_size: int) -> Tokenizer:
        """The tokenizer, which must fit so large a vocabulary."""

    def files(self, folder: Path) -> list[Path]:
        """What decides what the model computes: weights and config."""

    def save_pruned(self, folder: Path, to: Path, budgets: Budgets, policy: str) -> None:
        """A copy in the folder `to`, whose config has these budgets and this policy."""


class OwnFormat:
    """Folders of the decoder in this package: `config.json` with its type, safetensors, and a tokenizer beside them."""

    def owns(self, folder: Path) -> bool:
        """By the type that config.json names."""
        return read_json(folder / CONFIG).get("model_type") == SelectiveConfig.model_type

    def config(self, folder: Path) -> SelectiveConfig:
        """The config that lies in the folder, checked."""
        return read_config(folder)

    def describe(self, config: SelectiveConfig) -> Description:
        """What the config says of the model."""
        return config.description

    def skeleton(self, config: SelectiveConfig) -> nn.Module:
        """The model on the device `meta`."""
        return skeleton(config)

    def check(self, folder: Path, config: SelectiveConfig) -> None:
        """By the headers of the files with the weights."""
        check_weights(folder, config)

    def model(self, folder: Path, dtype: torch.dtype | None) -> LanguageModel:
        """The model with all its weights."""
        return load_whole(folder, **({} if dtype is None else {"dtype": dtype}))

    def has_tokenizer(self, folder: Path) -> bool:
        """Whether one lies beside the weights."""
        return has_tokenizer(folder)

    def tokenizer(self, folder: Path, vocab_size: int) -> Tokenizer:
        """What lies beside the weights; one with far fewer tokens than the model is that of another."""
        found = read_tokenizer(folder)
        if not found.vocab_size <= vocab_size <= -(-found.vocab_size // _ROUNDED) * _ROUNDED:
            raise SelattnError(
                f"the tokenizer in {folder} has {found.vocab_size} tokens, and its model knows {vocab_size}: "
                "put the one there that the model was trained with"
            )
        return found

    def files(self, folder: Path) -> list[Path]:
        """The weights, then the config."""
        return [*sorted(folder.glob("*.safetensors")), folder / CONFIG]

    def save_pruned(self, folder: Path, to: Path, budgets: Budgets, policy: str) -> None:
        """The same files, and another config."""
        for file in folder.iterdir():
            if file.is_file():
                shutil.copy2(file, to)
        config = read_config(folder)
        config.cache_budgets, config.cache_policy = budgets.to_json(), policy
        config.save_pretrained(to)


FORMATS: tuple[Format, ...] = (GgufFormat(), Llama2cFormat(), OwnFormat(), StockFormat())


@dataclass(frozen=True)
class Loaded:
    """A model that a user has named. Nothing is read before it is asked for, and nothing twice.

    Attributes:
        name: as the user wrote it.
        folder: where it is.
        format: how it is read.
        dtype: what the model computes in; None for what it is stored in.
        device: where it goes; None for a GPU if there is one.
    """

    name: str
    folder: Path
    format: Format
    dtype: torch.dtype | None = torch.float32
    device: str | torch.device | None = None

    @functools.cached_property
    def config(self) -> PreTrainedConfig:
        """As it is saved; one line if it cannot be that of a model."""
        return self.format.config(self.folder)

    @functools.cached_property
    def description(self) -> Description:
        """What is known of the model without its weights."""
        return self.format.describe(self.config)

    @functools.cached_property
    def model(self) -> LanguageModel:
        """The model in evaluation mode."""
        with quiet():
            model: Any = self.format.model(self.folder, self.dtype)
        return model.to(self.device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's own; one line if it has none."""
        if not self.reads_text:
            raise SelattnError(f"{self.folder} has no tokenizer: text can only be read with the tokenizer of the model")
        return self.format.tokenizer(self.folder, self.description.vocab_size)

    @property
    def reads_text(self) -> bool:
        """Whether there is a tokenizer; it is not read."""
        return self.format.has_tokenizer(self.folder)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of weights and config, which say what is computed: two models with the same are the same."""
        return digest(self.format.files(self.folder))

    @property
    def skeleton(self) -> nn.Module:
        """The model without memory for its weights, whatever its size."""
        return self.format.skeleton(self.config)

    def check(self) -> None:
        """Raise unless the weights are whole, without loading them."""
        with quiet():
            self.format.check(self.folder, self.config)

    def check_saving(self) -> None:
        """Raise if `save_pruned` cannot save it."""

    def save_pruned(self, to: Path, budgets: Budgets, policy: str) -> None:
        """A copy in the folder `to`, whose config has these budgets and this policy."""
        with quiet():
            self.format.save_pruned(self.folder, to, budgets, policy)

    @property
    def training_seed(self) -> int | None:
        """The seed that the model was trained with, as the record beside it says; None if there is none."""
        try:
            found = json.loads((self.folder / TRAINING).read_text())["seed"]
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return found if isinstance(found, int) else None


def load(
    model: str | Path | Loaded | LanguageModel,
    tokenizer: Tokenizer | PreTrainedTokenizerBase | None = None,
    *,
    dtype: torch.dtype | None = torch.float32,
    device: str | torch.device | None = None,
) -> Loaded:
    """The model that a user names or gives; one line if there is none.

    Args:
        model: a folder, the folder of a training run, or zoo:NAME; or a model itself, which stays as it is and where it
            is. What is loaded already comes back as it is.
        tokenizer: of a model that is given itself; without it the one of the folder that it was loaded from, if any.
        dtype: what a named model computes in, whatever it is stored in; None for what it is stored in.
        device: where a named model goes; None for a GPU if there is one.
    """
    if isinstance(model, Loaded):
        return model
    if not isinstance(model, str | Path):
        from selattn.models.given import given

        return given(model, tokenizer)
    if tokenizer is not None:
        raise SelattnError(f"{model} has a tokenizer of its own: leave the other out")
    folder = find_folder(model)
    for each in FORMATS:
        if each.owns(folder):
            return Loaded(str(model), folder, each, dtype, device)
    kind = read_json(folder / CONFIG).get("model_type")
    decoders = [name for name, family in FAMILIES.items() if not family.seq2seq]
    raise SelattnError(
        f"{folder / CONFIG} is of a model of type {kind!r}, which is not understood: give one of selattn's, "
        f"or a decoder of type {', '.join(decoders)}"
    )


def find_folder(name: str | Path) -> Path:
    """The folder, or the GGUF file, of a model that a user names; of what is in it only the names are looked at."""
    name = str(name)
    if not name:
        raise SelattnError(f"the name of a model is empty: give a folder, or {PREFIX}NAME")
    if name.startswith(PREFIX):
        return in_zoo(name.removeprefix(PREFIX))
    path = Path(name).expanduser()
    for folder in (path, path / "model"):  # a run's folder has its model inside
        if (folder / CONFIG).is_file():
            return folder
    if path.suffix == SUFFIX or Llama2cFormat().owns(path):
        return path
    if path.is_dir():
        raise SelattnError(f"{path} has no {CONFIG}: it is no model, nor the folder of a run that has ended")
    hint = f"; did you mean {PREFIX}{name}?" if name in zoo_models() else ""
    raise SelattnError(f"there is no model {name}{hint or f'; give a folder, or {PREFIX}NAME'}")
