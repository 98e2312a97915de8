"""How the model of a run comes about, and what trains it: a decoder of ours, or what another room makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from selattn.models.loading import load
from selattn.models.tokenizer import Tokenizer
from selattn.training.config import RunConfig, SpanData
from selattn.training.course import Course, check_course
from selattn.training.memory import check_memory
from selattn.training.model import make_model, model_config
from selattn.training.t5 import t5_ends
from selattn.training.trainer import SelectiveTrainer


@dataclass(frozen=True)
class Made:
    """What a run trains.

    Attributes:
        model: to be trained.
        course: what changes on the way.
        trainer: `SelectiveTrainer`, or what makes another of the same arguments.
    """

    model: Any
    course: Course
    trainer: Callable[..., SelectiveTrainer] = SelectiveTrainer


class Maker(Protocol):
    """Makes the model of a run. Nothing is written here, so that bad input leaves nothing behind."""

    def check_memory(self, run: RunConfig, devices: int, device: torch.device) -> None:
        """Raise if a step cannot fit into memory."""

    def tokenizer(self, run: RunConfig) -> Tokenizer | None:
        """What text is read with if the run names none; None if one is to be trained."""

    def make(self, run: RunConfig, tokenizer: Tokenizer | None) -> Made:
        """The model with its first weights; the seed is set."""


class NewModels:
    """Decoders of ours, new or fine-tuned; or a new T5."""

    def check_memory(self, run: RunConfig, devices: int, device: torch.device) -> None:
        """By the sizes that the run names."""
        check_memory(run, devices, device)

    def tokenizer(self, run: RunConfig) -> Tokenizer | None:
        """That of the model that is fine-tuned, if it has one."""
        found = None if run.start.model is None else load(run.start.model)
        return found.tokenizer if found is not None and found.reads_text else None

    def make(self, run: RunConfig, tokenizer: Tokenizer | None) -> Made:
        """With new weights, or those of `start.model`."""
        config = model_config(run, tokenizer)
        ends = t5_ends(config) if isinstance(run.data, SpanData) else config
        check_course(run, ends)
        return Made(make_model(run, config), Course(run, ends))
