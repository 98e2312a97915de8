"""From a run to its data and its model: the rows, the config, the first weights, and what changes during the run.

What changes is a function of the step alone, so that a resumed run continues exactly where it was:

    selection_strength   rises from 0 to the model's own in `start.ramp` steps
    cache_budgets        shrink from the first to the model's own in `shrink.steps` steps

The names are those of the model's config and of its `forward`, so that one dictionary serves both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from selattn.cache import Budgets, make_policy
from selattn.data.tokenizer import Tokenizer
from selattn.errors import SelattnError
from selattn.models import SelectiveConfig, SelectiveForCausalLM
from selattn.models.formats import read_whole
from selattn.models.forward import check_selects
from selattn.models.loading import load
from selattn.training.config import ARCHITECTURE, RunConfig, TextData
from selattn.training.datasets import Data, prepare
from selattn.training.record import InForce
from selattn.utils.distributed import local_size, world_size
from selattn.utils.memory import check_fits

if TYPE_CHECKING:
    from selattn.training.trainer import SelectiveTrainer


@dataclass(frozen=True)
class Made:
    """The model of a run and its trainer.

    Attributes:
        model: to be trained.
        course: what changes on the way.
        trainer: what makes a trainer of the arguments of `SelectiveTrainer`; None is that.
    """

    model: Any
    course: Course
    trainer: Callable[..., SelectiveTrainer] | None = None


class Maker(Protocol):
    """Makes data and model of a run. Nothing is written here, so that bad input leaves nothing behind."""

    def settings(self, run: RunConfig) -> Any:
        """An object with a value for each setting `model.NAME`, defaults included."""

    def check(self, run: RunConfig) -> None:
        """Raise if a step cannot fit into memory, or the model cannot be as the run sets it: before data are read."""

    def prepare(self, run: RunConfig, progress: bool) -> Data:
        """The rows of the run."""

    def make(self, run: RunConfig, tokenizer: Tokenizer | None) -> Made:
        """The model with its first weights; the seed is set."""


class Decoders:
    """Makes the paper's decoder, new or fine-tuned."""

    def settings(self, run: RunConfig) -> Any:
        """The model's config."""
        return model_config(run)

    def check(self, run: RunConfig) -> None:
        """By the model's config."""
        config: Any = model_config(run, _own_tokenizer(run))
        layer = 2 * (config.num_attention_heads + config.num_key_value_heads) * config.head_dim
        layer += 2 * config.intermediate_size
        weights = config.hidden_size * (config.vocab_size + config.num_hidden_layers * layer)
        check_memory(run, weights, config.vocab_size)
        check_course(run, config)

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


def check_memory(run: RunConfig, weights: int, vocabulary: int) -> None:
    """Raise for sizes beyond the machine's memory, such as a batch with three zeros too many.

    A lower bound: weights, gradients and AdamW's moments, the rows of a step, and the logits of a micro batch. A GPU
    that is too small says so at once; a machine would swap for minutes first, and then kill this or another process.
    """
    if torch.accelerator.is_available():
        return
    step = -(-run.batch.size // world_size())
    rows = max(min(step, run.batch.micro or step), min(run.evaluation.batch, run.evaluation.rows))
    needed = 16 * weights + 16 * step * run.data.context + 2 * rows * run.data.context * vocabulary
    advice = "make the model, batch.micro, batch.size or evaluation.batch smaller"
    check_fits(needed * local_size(), "this run needs", advice)


def model_config(run: RunConfig, tokenizer: Tokenizer | None = None) -> SelectiveConfig:
    """The model's config. Vocabulary and context size are those of the data unless the run says otherwise."""
    data = run.data
    vocabulary = data.vocabulary if isinstance(data, TextData) else data.vocab_size
    if tokenizer is not None:
        vocabulary = tokenizer.vocab_size
    settings: dict[str, Any] = dict(run.model)
    if run.start.model is None:
        ids = {} if tokenizer is None else special_tokens(tokenizer)
        settings = {"vocab_size": vocabulary, "max_position_embeddings": data.context, **ids, **settings}
        config = SelectiveConfig(**settings)
    else:
        given = load(run.start.model).config.to_dict()
        for name in ARCHITECTURE:
            if name in settings and settings[name] != given[name]:
                raise SelattnError(
                    f"model.{name} is {given[name]} in {run.start.model} and {settings[name]} in the run: "
                    "fine-tuning cannot change it; leave it out"
                )
        config = SelectiveConfig(**{**given, **settings})
        if run.start.ramp:
            _check_ramp(run.start.model, SelectiveConfig(**given), config)
    if config.vocab_size < vocabulary:
        raise SelattnError(
            f"the data has {vocabulary} tokens and the model's vocabulary {config.vocab_size}: "
            "set model.vocab_size or data.vocabulary, or use the tokenizer that the model was trained with"
        )
    most = config.max_position_embeddings
    if most < data.context:
        if run.start.model is None:
            advice = "set model.max_position_embeddings or data.context"
        elif isinstance(data, TextData):
            advice = f"fine-tuning cannot change that; set data.context={most}"
        else:
            advice = "fine-tuning cannot change that; take a smaller task"
        raise SelattnError(f"rows have {data.context} tokens and the model has {most} positions: {advice}")
    return config


def _check_ramp(name: str, before: SelectiveConfig, after: SelectiveConfig) -> None:
    """A ramp is for layers that begin to select: those that did before would first lose what they have learned."""
    pairs = zip(before.kinds, after.kinds, strict=True)
    new = [layer for layer, (old, kind) in enumerate(pairs) if kind.selective and not old.selective]
    if after.selects and not new and before.selection_strength > 0:
        raise SelattnError(
            f"start.ramp has nothing to ramp from: the layers of {name} that are to select do so already; "
            "leave start.ramp out"
        )


def make_model(run: RunConfig, config: Any) -> Any:
    """The model with new weights, or with those of the model that is fine-tuned."""
    if run.start.model is None:
        return SelectiveForCausalLM(config)
    return read_whole(load(run.start.model).folder, config=config, dtype=torch.float32)


def special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """As a model's config names them."""
    return {"pad_token_id": tokenizer.pad_id, "bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}


@dataclass(frozen=True)
class Ends:
    """Where a course ends: the fields that it reads of a model's config."""

    num_hidden_layers: int
    selects: bool
    selection_strength: float = 1.0
    budgets: Budgets | None = None


def check_course(run: RunConfig, config: Ends | SelectiveConfig) -> None:
    """Refuse a ramp or a shrinking that does not fit the model, before anything is written."""
    ramp, shrink = run.start.ramp, run.shrink
    if ramp and not config.selects:
        raise SelattnError("start.ramp has nothing to raise: no layer selects; set model.attention=selective")
    if ramp and run.start.model is None:
        raise SelattnError("start.ramp has nothing to ramp from: set start.model, or leave start.ramp out")
    if shrink.first is not None and not shrink.steps:
        raise SelattnError("shrink.first has no effect without shrink.steps: set both, or none")
    if shrink.steps and config.budgets is None:
        raise SelattnError("shrink.steps has nothing to shrink to: set model.cache_budgets, such as [8,16,8]")
    first, last = _shrinking(run, config)
    if any(begin < end for begin, end in zip(first, last, strict=False)):
        raise SelattnError(f"shrink.first {shrink.first} is below model.cache_budgets {last}: budgets only shrink")


def _shrinking(run: RunConfig, config: Ends | SelectiveConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The budgets of each layer at the beginning and at the end; the latter are empty if there are none."""
    layers = config.num_hidden_layers
    last = () if config.budgets is None else config.budgets.for_layers(layers)
    if run.shrink.first is None:  # nothing is evicted at first: a whole row fits
        return tuple(max(run.data.context, k) for k in last), last
    return Budgets(run.shrink.first).for_layers(layers), last


class Course:
    """The course of a run that passed `check_course`; `config` is that of the model at the end."""

    def __init__(self, run: RunConfig, config: Ends | SelectiveConfig) -> None:
        self._ramp, self._shrink = run.start.ramp, run.shrink
        self._strength, self._budgets = config.selection_strength, config.budgets
        self._first, self._last = _shrinking(run, config)

    def at(self, step: int) -> InForce:
        """The settings that differ from the model's config after `step` steps; {} at the end of the course."""
        changed: InForce = {}
        if step < self._ramp:
            changed["selection_strength"] = self._strength * step / self._ramp
        if step < self._shrink.steps:
            left = self._shrink.steps - (step - step % self._shrink.every)
            pairs = zip(self._first, self._last, strict=True)
            changed["cache_budgets"] = [last + (first - last) * left // self._shrink.steps for first, last in pairs]
        return changed

    def in_force(self, step: int) -> InForce:
        """For the log: the strength where there is a ramp, and budgets where there are any, changing or not."""
        settings: InForce = {"selection_strength": self._strength} if self._ramp else {}
        if self._budgets is not None:
            settings["cache_budgets"] = list(self._last)
        settings.update(self.at(step))
        return settings
