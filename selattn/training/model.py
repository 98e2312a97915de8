"""From a run to its model: config, first weights, and what changes in its course as a function of the step alone.

A resumed run goes on exactly where it was.

selection_strength   rises from 0 to the model's own in `start.ramp` steps
cache_budgets        shrink from the first to the model's own in `shrink.steps` steps

The names are those of the model's config and of its `forward`, so that one dictionary serves both.
"""

from __future__ import annotations

from typing import Any, Protocol

from selattn.cache import Budgets
from selattn.data.tokenizer import Tokenizer
from selattn.errors import SelattnError
from selattn.models import SelectiveConfig, SelectiveForCausalLM
from selattn.models.loading import load
from selattn.models.weights import load_whole
from selattn.training.config import ARCHITECTURE, RunConfig, TextData
from selattn.training.record import InForce


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
    return load_whole(load(run.start.model).folder, config=config, dtype="float32")


def special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """As a model's config names them."""
    return {"pad_token_id": tokenizer.pad_id, "bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}


class Ends(Protocol):
    """Where a course ends: what is read of a model's config, our decoder's for example."""

    @property
    def num_hidden_layers(self) -> int:
        """L, the number of layers."""

    @property
    def selects(self) -> bool:
        """Whether any layer does."""

    @property
    def selection_strength(self) -> float:
        """What multiplies S at the end."""

    @property
    def budgets(self) -> Budgets | None:
        """K_l at the end; None for no limit."""


def check_course(run: RunConfig, config: Ends) -> None:
    """Refuse, before anything is written, a ramp or a shrinking that the model has nothing for."""
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


def _shrinking(run: RunConfig, config: Ends) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The budgets of each layer at the beginning and at the end; the latter are empty if there are none."""
    layers = config.num_hidden_layers
    last = () if config.budgets is None else config.budgets.for_layers(layers)
    if run.shrink.first is None:  # nothing leaves as long as a row fits
        return tuple(max(run.data.context, k) for k in last), last
    return Budgets(run.shrink.first).for_layers(layers), last


class Course:
    """The course of a run that `check_course` has nothing against.

    Args:
        run: the whole configuration.
        config: of the model, as it is at the end.
    """

    def __init__(self, run: RunConfig, config: Ends) -> None:
        self._ramp, self._shrink = run.start.ramp, run.shrink
        self._strength, self._budgets = config.selection_strength, config.budgets
        self._first, self._last = _shrinking(run, config)

    def at(self, step: int) -> InForce:
        """What differs from the model's config in the step after `step` steps; {} once everything has arrived."""
        found: InForce = {}
        if step < self._ramp:
            found["selection_strength"] = self._strength * step / self._ramp
        if step < self._shrink.steps:
            left = self._shrink.steps - (step - step % self._shrink.every)
            pairs = zip(self._first, self._last, strict=True)
            found["cache_budgets"] = [last + (first - last) * left // self._shrink.steps for first, last in pairs]
        return found

    def in_force(self, step: int) -> InForce:
        """For the log: the strength where there is a ramp, and budgets where there are any, changing or not."""
        found: InForce = {"selection_strength": self._strength} if self._ramp else {}
        if self._budgets is not None:
            found["cache_budgets"] = list(self._last)
        found.update(self.at(step))
        return found
