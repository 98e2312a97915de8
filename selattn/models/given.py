"""A model that a user gives as an object, in the place of one that is named: `load(model, tokenizer)`."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from selattn.data.tokenizer import Tokenizer, has_tokenizer, read_tokenizer
from selattn.errors import SelattnError
from selattn.models.loading import FORMATS, Loaded, find_folder
from selattn.models.seam import Description, LanguageModel

NOWHERE = Path(os.devnull) / "nowhere"  # the folder of a model that has none: nothing can be there


@dataclass(frozen=True)
class Given(Loaded):
    """A model that is there already, as it is and where it is.

    Attributes:
        itself: the model.
        reader: its tokenizer; None for that of the folder that it was loaded from, if there is one.
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
        """What the model says of itself."""
        return self.model.description

    @property
    def config(self) -> PreTrainedConfig:
        """That of a model of transformers; one line for any other."""
        found = getattr(self.model, "config", None)
        if not isinstance(found, PreTrainedConfig):
            raise SelattnError(f"a {type(self.model).__name__} has no config of transformers")
        return found

    @property
    def reads_text(self) -> bool:
        """Whether it has a tokenizer."""
        return self.reader is not None or has_tokenizer(self.folder)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The one that was given, or the folder's; one line if there is none."""
        if not self.reads_text:
            raise SelattnError(f"{self.name} has no tokenizer: give it one, load(model, tokenizer)")
        return self.reader or read_tokenizer(self.folder)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the weights and the description."""
        if not isinstance(self.model, nn.Module):
            raise SelattnError(f"two models of type {self.name} cannot be told apart: use a torch module")
        found = hashlib.blake2b(repr(self.description).encode(), digest_size=16)
        for name, weight in sorted(self.model.state_dict().items()):
            found.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
            found.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return found.hexdigest()

    @property
    def skeleton(self) -> nn.Module:
        """The model itself; of one that is no torch module, nothing is known."""
        return self.model if isinstance(self.model, nn.Module) else nn.Module()

    def check(self) -> None:
        """It has been loaded."""

    def check_saving(self) -> None:
        """Only a model that was named can be copied."""
        raise SelattnError(f"{self.name} was given as an object: save it by its own save_pretrained")


def given(model: LanguageModel, tokenizer: Tokenizer | PreTrainedTokenizerBase | None) -> Given:
    """A model that is there already; one line for what is none."""
    if not isinstance(model, LanguageModel):
        raise SelattnError(f"a {type(model).__name__} is no model: see selattn.models.seam for what one must have")
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        tokenizer = Tokenizer(tokenizer)
    name, folder = getattr(model, "name_or_path", ""), NOWHERE  # transformers notes where it has read a model
    with contextlib.suppress(SelattnError):  # a folder that is gone: who asks for the tokenizer is told
        folder = find_folder(name)
    unread = FORMATS[0]  # nothing is read
    return Given(name or type(model).__name__, folder, unread, itself=model, reader=tokenizer)
