"""What an evaluation finds, as a record has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from selattn.errors import SelattnError
from selattn.evaluation.speed import Decoding
from selattn.evaluation.subjects import KVSize
from selattn.utils.typed import if_any


@dataclass(frozen=True)
class KV:
    """What the cache of a model holds, in tokens.

    Attributes:
        held: by each layer.
        read: by a query of each layer.
        mean: held, a mean over the layers.
        memory_factor: layers * N / tokens held.
    """

    held: tuple[int, ...]
    read: tuple[int, ...]
    mean: float
    memory_factor: float

    @classmethod
    def of(cls, size: KVSize) -> KV:
        """What a record holds of a measured cache size."""
        return cls(size.held, size.read, size.mean, size.factor)


@dataclass(frozen=True)
class TextResult:
    """Log-perplexity on a text.

    Attributes:
        loss: nats per token.
        perplexity: exp(loss).
        rows: how many rows of the text.
        tokens: how many tokens were predicted.
    """

    loss: float
    perplexity: float
    rows: int
    tokens: int


@dataclass(frozen=True)
class TaskResult:
    """Multiple choice.

    Attributes:
        questions: how many were asked.
        acc: the share of right answers.
        acc_stderr: its standard error; None of a single question.
        acc_norm: the same with likelihoods divided by the length of a choice.
        acc_norm_stderr: its standard error.
    """

    questions: int
    acc: float
    acc_stderr: float | None
    acc_norm: float
    acc_norm_stderr: float | None


@dataclass(frozen=True)
class Evaluated:
    """All that was measured of a model.

    Attributes:
        model: as the user wrote it.
        fingerprint: of its weights and config.
        parameters: how many it has.
        context: N.
        budgets: K_l, or one number for all layers; None for no limit.
        policy: who leaves when a layer is full.
        kv: what its cache holds.
        text: by the name of the text.
        tasks: by the name of the task.
        decoding: None if it was not asked for.
    """

    model: str
    fingerprint: str
    parameters: int
    context: int
    budgets: int | tuple[int, ...] | None
    policy: str
    kv: KV
    text: dict[str, TextResult] = if_any(default_factory=dict)
    tasks: dict[str, TaskResult] = if_any(default_factory=dict)
    decoding: Decoding | None = if_any(default=None)


@dataclass(frozen=True)
class Settings:
    """What was measured on.

    Attributes:
        split, layout: of the texts; None without any.
        rows: of each text; None for all.
        skip: rows that were left out, or the folder of the search whose rows were.
        limit: questions of each task; None for all.
        batch: rows at a time.
    """

    split: str | None
    layout: str | None
    rows: int | None
    skip: int | str
    limit: int | None
    batch: int


@dataclass(frozen=True)
class Comparison:
    """The record of `selattn eval`.

    Attributes:
        settings: what was measured on.
        models: in the order in which they were named.
    """

    settings: Settings
    models: tuple[Evaluated, ...]


@dataclass(frozen=True)
class Point:
    """A point of a curve, as a record has it.

    Attributes:
        kv_size: tokens that a layer holds, a mean over the layers.
        memory_factor: N / kv_size.
        held: by each layer.
        read: by a query of each layer.
        budgets: K_l; None for a model as it is.
        loss: log-perplexity by the name of the text.
    """

    kv_size: float
    memory_factor: float
    held: tuple[int, ...]
    read: tuple[int, ...]
    budgets: tuple[int, ...] | None
    loss: dict[str, float]


@dataclass(frozen=True)
class AtLoss:
    """Where a curve reaches the baseline's loss, as a record has it.

    Attributes:
        kv_size: there.
        memory_factor: N / kv_size.
        at_least: whether the curve ends there with a smaller loss, so that the true factor is larger.
    """

    kv_size: float
    memory_factor: float
    at_least: bool


@dataclass(frozen=True)
class TextSize:
    """How much of a text was read."""

    rows: int
    tokens: int


@dataclass(frozen=True)
class CurveModel:
    """A model whose points are on a curve.

    Attributes:
        model: as the user wrote it.
        training_seed: that it was trained with; None if that is not known.
        policy: who leaves; None for the model's own.
        search: the folder of the search whose path is followed.
    """

    model: str
    training_seed: int | None = None
    policy: str | None = None
    search: str | None = None


@dataclass(frozen=True)
class MeasuredCurve:
    """A curve of the record.

    Attributes:
        name: what it is called in the figure.
        of: its models: local models of several windows are the points of one curve.
        points: in the order in which they were measured.
        at_the_baselines_loss: by the name of the text; None where the curve does not reach that loss.
    """

    name: str
    of: tuple[CurveModel, ...]
    points: tuple[Point, ...]
    at_the_baselines_loss: dict[str, AtLoss | None]

    def __post_init__(self) -> None:
        if not self.points or min(point.kv_size for point in self.points) <= 0:
            raise SelattnError(f"the curve {self.name!r} has no points, or one that holds nothing: measure it again")


@dataclass(frozen=True, kw_only=True)
class Baseline(Point):
    """The model whose loss the curves are to reach.

    Attributes:
        name: what it is called in the figure.
        model: as the user wrote it; None in records from before it was noted.
        training_seed: that it was trained with; None if that is not known.
    """

    name: str
    model: str | None = None
    training_seed: int | None = None

    @classmethod
    def of(cls, point: Point, name: str, model: str, training_seed: int | None) -> Baseline:
        """The point of a model as it is."""
        return cls(**vars(point), name=name, model=model, training_seed=training_seed)


@dataclass(frozen=True)
class Origin:
    """Where the record that was extended comes from."""

    command: str
    date: str
    machine: Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True)
class Tradeoff:
    """The record of `selattn eval --curve`.

    Attributes:
        context: N.
        texts: by name.
        skip: rows that were left out, or the folder of the search whose rows were.
        baseline: None without one.
        curves: in the order in which they were named.
        extends: the record whose curves stand before the others.
    """

    context: int
    texts: dict[str, TextSize]
    skip: int | str
    baseline: Baseline | None
    curves: tuple[MeasuredCurve, ...]
    extends: Origin | None = if_any(default=None)

    def __post_init__(self) -> None:
        points = [point for curve in self.curves for point in curve.points]
        for point in points if self.baseline is None else [self.baseline, *points]:
            for text in self.texts.keys() ^ point.loss.keys():
                raise SelattnError(f"the trade-off lacks a loss on {text!r}: measure it again")
