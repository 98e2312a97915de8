"""What a run leaves behind, typed: the lines of its log, and the record beside the trained model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

from selattn.utils.typed import if_any


@dataclass(frozen=True)
class Score:
    """What an evaluation finds on one set.

    Attributes:
        loss: nats per token.
        accuracy: of a task, the share of samples solved; None of a text.
        kept: the fraction that each layer keeps; None for layers that do not select, and None if none does.
    """

    loss: float
    accuracy: float | None = if_any(default=None)
    kept: list[float | None] | None = None


@dataclass(frozen=True)
class TrainingLosses:
    """Of the last record of the log: see `LogLine`."""

    loss: float
    lm_loss: float
    memory_loss: float
    kept: list[float | None] | None = None
    kl_loss: float | None = if_any(default=None)


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """The record beside a trained model.

    Attributes:
        run: the whole configuration, `RunConfig.to_dict`.
        data_checksums: of the tokens of each split of a text; empty for a task, and in old records.
        parameters: of the model.
        steps: that were taken.
        tokens: that were trained on.
        seconds: of wall clock.
        devices: that trained.
        training: the last losses; empty if none was logged.
        evaluation: the last, by the name of the set.
    """

    run: dict[str, Any]
    data_checksums: dict[str, str] = field(default_factory=dict)
    parameters: int
    steps: int
    tokens: int
    seconds: float
    devices: int
    training: TrainingLosses | dict[str, float]
    evaluation: dict[str, Score]


class Wall(TypedDict):
    """Of wall clock: what two runs that are the same do not have in common."""

    seconds: float
    tokens_per_second: NotRequired[float]


class InForce(TypedDict, total=False):
    """What is in force in a step, where it changes on the way."""

    selection_strength: float
    cache_budgets: list[int]


class Losses(TypedDict):
    """Of the training since the last line: `loss` is `lm_loss` and `memory_loss` together; `tokens` are all so far.

    With a teacher, `kl_loss` has a share in `loss`, and `lm_loss` the rest of it.
    """

    loss: float
    lm_loss: float
    memory_loss: float
    kept: list[float | None] | None
    tokens: int
    kl_loss: NotRequired[float]


class LogLine(InForce):
    """A line of the log: of the training since the last one, with the fields of `Losses`, or of an evaluation."""

    step: int
    wall: Wall
    loss: NotRequired[float]
    lm_loss: NotRequired[float]
    memory_loss: NotRequired[float]
    kl_loss: NotRequired[float]
    kept: NotRequired[list[float | None] | None]
    tokens: NotRequired[int]
    grad_norm: NotRequired[float]
    learning_rate: NotRequired[float]
    evaluation: NotRequired[dict[str, Any]]  # `Score` by the name of the set, as JSON has it
