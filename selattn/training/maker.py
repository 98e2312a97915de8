"""How the data and the model of a run come about, and what trains them: a decoder here, others elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from selattn.cache import make_policy
from selattn.data.tokenizer import Tokenizer
from selattn.models.evicting import check_selects
from selattn.models.loading import load
from selattn.training.config import RunConfig
from selattn.training.datasets import Data, prepare
from selattn.training.memory import check_memory
from selattn.training.model import Course, check_course, make_model, model_config
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
    """Makes data and model of a run. Nothing is written here, so that bad input leaves nothing behind."""

    def settings(self, run: RunConfig) -> Any:
        """An object with a value for each setting `model.NAME`, defaults included."""

    def check(self, run: RunConfig, devices: int, device: torch.device) -> None:
        """Raise if a step cannot fit into memory, or the model cannot be as the run sets it: before data are read."""

    def prepare(self, run: RunConfig, progress: bool) -> Data:
        """The rows of the run."""

    def make(self, run: RunConfig, tokenizer: Tokenizer | None) -> Made:
        """The model with its first weights; the seed is set."""


class Decoders:
    """The paper's decoder, new or fine-tuned."""

    def settings(self, run: RunConfig) -> Any:
        """The model's config."""
        return model_config(run)

    def check(self, run: RunConfig, devices: int, device: torch.device) -> None:
        """By the sizes that the run names; then its config and its course."""
        check_memory(run, devices, device)
        check_course(run, model_config(run, _own_tokenizer(run)))

    def prepare(self, run: RunConfig, progress: bool) -> Data:
        """The run's data; a model that is fine-tuned brings its tokenizer."""
        return prepare(run, _own_tokenizer(run), progress)

    def make(self, run: RunConfig, tokenizer: Tokenizer | None) -> Made:
        """With new weights, or those of `start.model`."""
        config = model_config(run, tokenizer)
        check_course(run, config)
        check_selects(config.budgets, make_policy(config.cache_policy), config.selects)
        return Made(make_model(run, config), Course(run, config))


def _own_tokenizer(run: RunConfig) -> Tokenizer | None:
    """Of the model that is fine-tuned, if it has one."""
    start = None if run.start.model is None else load(run.start.model)
    return start.tokenizer if start is not None and start.reads_text else None
