"""Records of one measurement over several seeds, in one record of the same form.

Where a record of `selattn eval --curve` has a number, the one of several seeds has the mean, and beside it the numbers
of the seeds in the order of their records: `loss` and `losses`, `memory_factor` and `memory_factors`. The seed of a
record is the one that its models were trained with, not that of the rows they were measured on.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from selattn.errors import SelattnError
from selattn.evaluation.curve import AtLoss, Point, at_losses
from selattn.evaluation.results import Origin, TextSize, Tradeoff
from selattn.evaluation.text import Text
from selattn.pruning.record import Counts, SearchRecord
from selattn.pruning.search import Procedure
from selattn.utils.records import Provenance, as_body, read_record

T = TypeVar("T")
Records = Mapping[str, Mapping[str, Any]]  # as JSON has them, by the name of their file


@dataclass(frozen=True)
class Source(Origin):
    """Where, when and by which command a record was measured: the merged one is often made somewhere else.

    Attributes:
        record: its file.
        training_seed: of its models; None if it is not known, or not the same for all.
    """

    record: str
    training_seed: int | None


@dataclass(frozen=True)
class SeedsLoss:
    """Losses by the name of the text: the mean, and those of the seeds."""

    loss: dict[str, float]
    losses: dict[str, list[float]]


@dataclass(frozen=True)
class SeedsPoint(SeedsLoss):
    """A point that all seeds of a curve have."""

    kv_size: float


@dataclass(frozen=True)
class SeedsBaseline(SeedsLoss):
    """The loss of one baseline over the seeds."""

    name: str


@dataclass(frozen=True)
class SeedsReached:
    """Where the curves reach their baselines' loss.

    Attributes:
        memory_factor: the mean; None unless every seed reaches that loss.
        memory_factors: of each seed; None of one that does not.
        at_least: whether one of them is a lower bound.
    """

    memory_factor: float | None
    memory_factors: list[float | None]
    at_least: bool


@dataclass(frozen=True)
class SeedsCurve:
    """A curve of the records that have it.

    Attributes:
        name: what it is called in the figure.
        seeds: how many records have it.
        training_seeds: of these.
        points: those that every seed has.
        at_the_baselines_loss: by the name of the text.
    """

    name: str
    seeds: int
    training_seeds: list[int | None]
    points: tuple[SeedsPoint, ...]
    at_the_baselines_loss: dict[str, SeedsReached]


@dataclass(frozen=True)
class MergedTradeoff:
    """The record of several records of `selattn eval --curve`; see `selattn.evaluation.results.Tradeoff`."""

    records: tuple[Source, ...]
    context: int
    texts: dict[str, TextSize]
    skip: int | str
    baseline: SeedsBaseline | None
    curves: tuple[SeedsCurve, ...]


@dataclass(frozen=True)
class SeedSearch:
    """What a search found; see `selattn.pruning.record.SearchRecord`."""

    record: str
    training_seed: int | None
    model: str
    budgets: tuple[int, ...]
    memory_factor: float
    at_floor: bool
    search_limit: float | None
    search_loss: float
    report: dict[str, float]


@dataclass(frozen=True)
class MergedSearches:
    """The record of several records of `selattn prune`.

    Attributes:
        records: where they come from.
        policy, procedure, text, rows: the same for all.
        searches: one for each record.
        memory_factor: the mean.
        report: means by name.
    """

    records: tuple[Source, ...]
    policy: str
    procedure: Procedure
    text: Text
    rows: Counts
    searches: tuple[SeedSearch, ...]
    memory_factor: float
    report: dict[str, float]


def merge_seeds(paths: Sequence[str | Path]) -> MergedTradeoff | MergedSearches:
    """Records of `selattn eval --curve`, or of `selattn prune`, one for each seed, in one.

    Each file must be another seed: one that counts twice would narrow the spread without a word.
    """
    found = {str(path): read_record(path) for path in paths}
    for name, record in found.items():
        if "records" in record:
            raise SelattnError(f"{name} is of several seeds already: give the records that it was made from")
    seen: dict[Path, str | Path] = {}
    for path in paths:
        where = Path(path).resolve()
        if where in seen:
            raise SelattnError(f"{seen[where]} and {path} are the same file: give each record once")
        seen[where] = path
    kinds = {kind for record in found.values() for kind in ("curves", "budgets") if kind in record}
    if len(kinds) != 1 or any(kinds.isdisjoint(record) for record in found.values()):
        raise SelattnError("these are not all records of 'selattn eval --curve', nor all of 'selattn prune'")
    return merge_curves(found) if kinds == {"curves"} else merge_searches(found)


def merge_curves(records: Records) -> MergedTradeoff:
    """From records of `selattn eval --curve`, by the name of their file, on the same text.

    A curve that some records lack, such as a model that was trained with one seed only, has the seeds that it has. A
    point is kept if every seed has one of its size. A search takes the same number of tokens in every iteration, so
    those of several seeds pass through the same sizes; the budgets behind them differ. Where a curve reaches the
    baseline's loss is read off its points, not taken from the record, so that it means the same for all of them.
    """
    found = {name: as_body(record, Tradeoff, name) for name, record in records.items()}
    sources = _sources(records, {name: seed_of_tradeoff(each) for name, each in found.items()})
    _check_same("contexts", found, lambda each: each.context)
    _check_same("texts", found, lambda each: each.texts)
    _check_same("baselines", found, lambda each: each.baseline is not None)
    first, *_ = found.values()
    baselines = [each.baseline for each in found.values() if each.baseline is not None]
    names = dict.fromkeys(curve.name for each in found.values() for curve in each.curves)
    return MergedTradeoff(
        records=sources,
        context=first.context,
        texts=first.texts,
        skip=first.skip,
        baseline=SeedsBaseline(**_losses(baselines), name=baselines[0].name) if baselines else None,
        curves=tuple(_curve(name, list(found.values())) for name in names),
    )


def merge_searches(records: Records) -> MergedSearches:
    """From records of `selattn prune`, by the name of their file: searches of one kind on the same text."""
    found = {name: as_body(record, SearchRecord, name) for name, record in records.items()}
    seeds = {name: _seed_of(each.model, each.training_seed) for name, each in found.items()}
    sources = _sources(records, seeds)
    _check_same("policies", found, lambda each: each.policy)
    _check_same("procedures", found, lambda each: each.procedure)
    _check_same("texts", found, lambda each: each.text)
    _check_same("rows", found, lambda each: each.rows)
    _check_same("reports", found, lambda each: sorted(each.report))
    first, *_ = found.values()
    return MergedSearches(
        records=sources,
        policy=first.policy,
        procedure=first.procedure,
        text=first.text,
        rows=first.rows,
        searches=tuple(_search(name, seeds[name], each) for name, each in found.items()),
        memory_factor=statistics.fmean(each.memory_factor for each in found.values()),
        report={name: statistics.fmean(each.report[name] for each in found.values()) for name in first.report},
    )


def seed_of_tradeoff(record: Tradeoff) -> int | None:
    """The seed that the models of a record were trained with; None if it is not known, or not the same for all."""
    found = {_seed_of(model.model, model.training_seed) for curve in record.curves for model in curve.of}
    if record.baseline is not None:
        found.add(_seed_of(record.baseline.model, record.baseline.training_seed))
    found -= {None}
    return found.pop() if len(found) == 1 else None


def _seed_of(model: str | None, said: int | None) -> int | None:
    """What the record says; older ones name it only in the name of a run: -seed1."""
    if said is not None:
        return said
    named = re.search(r"-seed(\d+)(/model)?/?$", model or "")
    return int(named[1]) if named else None


def _sources(records: Records, seeds: Mapping[str, int | None]) -> tuple[Source, ...]:
    """Where each record comes from; raises if two of them are of one seed, on the same rows."""
    seen: dict[tuple[int, Any], str] = {}
    found = []
    for name, record in records.items():
        made, seed = as_body(record, Provenance, name), seeds[name]
        if seed is not None:
            first = seen.setdefault((seed, made.seed), name)
            if first != name:
                raise SelattnError(
                    f"{first} and {name} are both of models trained with seed {seed}: give each seed once"
                )
        found.append(Source(made.command, made.date, made.machine, name, seed))
    return tuple(found)


def _check_same(what: str, records: Mapping[str, T], get: Callable[[T], object]) -> None:
    (first, there), *others = records.items()
    for name, record in others:
        if get(record) != get(there):
            raise SelattnError(f"{first} and {name} have different {what}: they are not seeds of one measurement")


def _curve(name: str, records: Sequence[Tradeoff]) -> SeedsCurve:
    """The curve of that name of the records that have it."""
    seeds = [(curve.points, record) for record in records for curve in record.curves if curve.name == name]
    by_size = [{round(point.kv_size, 6): point for point in points} for points, _ in seeds]
    sizes = [size for size in by_size[0] if all(size in points for points in by_size)]
    if not sizes:
        raise SelattnError(f"the curves {name!r} have no size in common: measure them with the same --sizes")
    reached = [
        {} if record.baseline is None else at_losses(points, record.baseline.loss, record.context)
        for points, record in seeds
    ]
    return SeedsCurve(
        name=name,
        seeds=len(seeds),
        training_seeds=[seed_of_tradeoff(record) for _, record in seeds],
        points=tuple(SeedsPoint(**_losses([each[size] for each in by_size]), kv_size=size) for size in sizes),
        at_the_baselines_loss={text: _reached([seed[text] for seed in reached]) for text in reached[0]},
    )


def _losses(points: Sequence[Point]) -> dict[str, Any]:
    losses = {text: [point.loss[text] for point in points] for text in points[0].loss}
    return {"loss": {text: statistics.fmean(each) for text, each in losses.items()}, "losses": losses}


def _reached(seeds: Sequence[AtLoss | None]) -> SeedsReached:
    """There is a mean only if every seed reaches the loss; it is a lower bound if one of them is."""
    factors = [None if seed is None else seed.memory_factor for seed in seeds]
    known = [factor for factor in factors if factor is not None]
    mean = statistics.fmean(known) if len(known) == len(seeds) else None
    return SeedsReached(mean, factors, any(seed is not None and seed.at_least for seed in seeds))


def _search(name: str, seed: int | None, record: SearchRecord) -> SeedSearch:
    return SeedSearch(
        record=name,
        training_seed=seed,
        model=record.model,
        budgets=record.budgets,
        memory_factor=record.memory_factor,
        at_floor=record.at_floor,
        search_limit=record.search_limit,
        search_loss=record.search_loss,
        report=record.report,
    )
