"""From the name of a model to its folder, config, weights and tokenizer: located in one place, each read once.

    model, tokenizer = load("zoo:memory")   # as transformers has them
    loaded = load("zoo:memory")             # a folder, the folder of a training run, zoo:NAME, or a model itself
    loaded.description.layers               # from the config alone; weights are not read before they are asked for

The first of `selattn.models.formats.FORMATS` that knows a folder reads it. To read another kind of model, derive a
class from `FolderFormat` and add it there; nothing else has to change.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from selattn.cache import Budgets
from selattn.data.tokenizer import Tokenizer, has_tokenizer, read_tokenizer
from selattn.errors import SelattnError
from selattn.models.formats import CONFIG, FORMATS, GGUF, FolderFormat, Llama2cFormat, quiet, skeleton
from selattn.models.protocols import Description, LanguageModel
from selattn.models.stock.families import FAMILIES
from selattn.models.zoo import PREFIX, in_zoo, zoo_models
from selattn.utils.files import digest, read_json

TRAINING = "training_record.json"  # beside a trained model
_NOWHERE = Path(os.devnull) / "nowhere"  # the folder of a model that has none: nothing can be there


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
    format: FolderFormat
    dtype: torch.dtype | None = torch.float32
    device: str | torch.device | None = None

    def __iter__(self) -> Iterator[Any]:
        """Model and tokenizer as transformers has them: `model, tokenizer = load(...)`; None without a tokenizer."""
        yield self.model
        yield self.tokenizer.hf if self.reads_text else None

    @functools.cached_property
    def config(self) -> Any:
        """As it is saved; one line if it cannot be that of a model."""
        return self.format.config(self.folder)

    @functools.cached_property
    def description(self) -> Description:
        """The model without its weights, from the config alone."""
        described: Description = self.config.description
        return described

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
        return skeleton(self.config)

    def check(self) -> None:
        """Raise unless the weights are whole, without loading them."""
        with quiet():
            self.format.check(self.folder)

    def check_saving(self) -> None:
        """Raise if `save_pruned` cannot save it."""

    def save_pruned(self, to: Path, budgets: Budgets, policy: str) -> None:
        """A copy in the folder `to`, whose config has these budgets and this policy."""
        with quiet():
            self.format.save_pruned(self.folder, to, budgets, policy)

    @property
    def training_seed(self) -> int | None:
        """The seed of the training, from the record beside the model; None without a record."""
        try:
            seed = json.loads((self.folder / TRAINING).read_text())["seed"]
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return seed if isinstance(seed, int) else None


@dataclass(frozen=True)
class Given(Loaded):
    """A model that a user gives as an object, as it is and where it is.

    Attributes:
        itself: the model.
        reader: its tokenizer; None for the one in the folder that it was loaded from, if there is one.
    """

    itself: LanguageModel | None = None
    reader: Tokenizer | None = None

    @property
    def model(self) -> LanguageModel:
        """The model that was given, as it is."""
        assert self.itself is not None
        return self.itself

    @property
    def description(self) -> Description:
        """The model's own description."""
        return self.model.description

    @property
    def config(self) -> PreTrainedConfig:
        """The config of a model of transformers; one line for any other."""
        config = getattr(self.model, "config", None)
        if not isinstance(config, PreTrainedConfig):
            raise SelattnError(f"a {type(self.model).__name__} has no config of transformers")
        return config

    @property
    def reads_text(self) -> bool:
        """Whether it has a tokenizer."""
        return self.reader is not None or has_tokenizer(self.folder)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The given tokenizer, or the folder's; one line without any."""
        if not self.reads_text:
            raise SelattnError(f"{self.name} has no tokenizer: give it one, load(model, tokenizer)")
        return self.reader or read_tokenizer(self.folder)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the weights and the description."""
        if not isinstance(self.model, nn.Module):
            raise SelattnError(f"two models of type {self.name} cannot be told apart: use a torch module")
        made = hashlib.blake2b(repr(self.description).encode(), digest_size=16)
        for name, weight in sorted(self.model.state_dict().items()):
            made.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
            made.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return made.hexdigest()

    @property
    def skeleton(self) -> nn.Module:
        """The model itself; of one that is no torch module, nothing is known."""
        return self.model if isinstance(self.model, nn.Module) else nn.Module()

    def check(self) -> None:
        """It has been loaded."""

    def check_saving(self) -> None:
        """Only a model that was named can be copied."""
        raise SelattnError(f"{self.name} was given as an object: save it by its own save_pretrained")


def load(
    model: str | Path | Loaded | LanguageModel,
    tokenizer: Tokenizer | PreTrainedTokenizerBase | None = None,
    *,
    dtype: torch.dtype | None = torch.float32,
    device: str | torch.device | None = None,
) -> Loaded:
    """The model that a user names or gives; one line for anything else.

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
        return _given(model, tokenizer)
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


def _given(model: LanguageModel, tokenizer: Tokenizer | PreTrainedTokenizerBase | None) -> Given:
    """A model that is there already; one line for any other object."""
    if not isinstance(model, LanguageModel):
        raise SelattnError(f"a {type(model).__name__} is no model: see selattn.models.protocols for what one must have")
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        tokenizer = Tokenizer(tokenizer)
    name, folder = getattr(model, "name_or_path", ""), _NOWHERE  # transformers notes where it has read a model
    with contextlib.suppress(SelattnError):  # a folder that is gone: who asks for the tokenizer is told
        folder = find_folder(name)
    return Given(name or type(model).__name__, folder, FORMATS[0], itself=model, reader=tokenizer)  # reads nothing


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
    if path.suffix == GGUF or Llama2cFormat().owns(path):
        return path
    if path.is_dir():
        raise SelattnError(f"{path} has no {CONFIG}: it is no model, nor the folder of a run that has ended")
    hint = f"; did you mean {PREFIX}{name}?" if name in zoo_models() else ""
    raise SelattnError(f"there is no model {name}{hint or f'; give a folder, or {PREFIX}NAME'}")
