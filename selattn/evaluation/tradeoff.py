"""The trade-off between loss and KV size, for several models and policies on the same rows, in one record.

curves = [Curve.of("zoo:memory", search=read_search("runs/prune/memory")), Curve.of("zoo:standard", "h2o", sizes=True)]
found = measure_tradeoff(curves, "embedded", baseline="zoo:standard", rows=32)
found.curves[0].at_the_baselines_loss["embedded"].memory_factor
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from selattn.cache import Budgets, import_policy
from selattn.cache.budgets import SMALLEST
from selattn.errors import SelattnError
from selattn.evaluation.losses import Batch, log_perplexity, make_batches
from selattn.evaluation.subjects import check_context, kv_size
from selattn.evaluation.text import Data, Searched, Text, named_texts, skip_name, text_key
from selattn.models.forward import check_selects
from selattn.models.loading import Loaded, load
from selattn.models.protocols import LanguageModel
from selattn.utils.distributed import Team
from selattn.utils.journal import Key, Parts, parts_of
from selattn.utils.progress import Progress
from selattn.utils.records import Provenance, as_body, portable, read_record
from selattn.utils.typed import if_any


@dataclass(frozen=True)
class Point:
    """A point of a curve. Losses are by the name of the text."""

    kv_size: float  # tokens that a layer holds, a mean over the layers
    memory_factor: float  # N / kv_size
    held: tuple[int, ...]  # by each layer, and read by a query of each: see `selattn.evaluation.subjects`
    read: tuple[int, ...]
    budgets: tuple[int, ...] | None  # K_l; None for a model without budgets
    loss: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Baseline(Point):
    """The model whose loss the curves are to reach."""

    name: str  # in the figure
    model: str | None = None  # as the user wrote it; None in early records
    training_seed: int | None = None  # None if it is not known


@dataclass(frozen=True)
class AtLoss:
    """Where a curve reaches the baseline's loss."""

    kv_size: float
    memory_factor: float
    at_least: bool  # the curve ends there with a smaller loss, so the true factor is larger


@dataclass(frozen=True)
class CurveModel:
    """A model whose points are on a curve."""

    model: str  # as the user wrote it
    training_seed: int | None = None
    policy: str | None = None
    search: str | None = None  # the folder of the search whose path the curve follows


@dataclass(frozen=True)
class MeasuredCurve:
    """A curve of the record; several local models with different windows make one curve."""

    name: str  # in the figure
    of: tuple[CurveModel, ...]
    points: tuple[Point, ...]
    at_the_baselines_loss: dict[str, AtLoss | None]  # by the name of the text; None where it does not reach that loss

    def __post_init__(self) -> None:
        if not self.points or min(point.kv_size for point in self.points) <= 0:
            raise SelattnError(f"the curve {self.name!r} has no points, or one that holds nothing: measure it again")


@dataclass(frozen=True)
class TextSize:
    """How much of a text was read."""

    rows: int
    tokens: int


@dataclass(frozen=True)
class Origin:
    """The record that was extended."""

    command: str
    date: str
    machine: Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True)
class Tradeoff:
    """The record of `selattn eval --curve`."""

    context: int
    texts: dict[str, TextSize]
    skip: int | str  # rows that were left out, or the folder of the search that had them
    baseline: Baseline | None
    curves: tuple[MeasuredCurve, ...]
    extends: Origin | None = if_any(default=None)  # its curves come first

    def __post_init__(self) -> None:
        points = [point for curve in self.curves for point in curve.points]
        for point in points if self.baseline is None else [self.baseline, *points]:
            for text in self.texts.keys() ^ point.loss.keys():
                raise SelattnError(f"the trade-off lacks a loss on {text!r}: measure it again")


@dataclass(frozen=True)
class SearchPath:
    """The path of a search, which a curve follows; `selattn.pruning.read_search` reads one."""

    folder: Path
    context: int
    policy: str
    budgets: tuple[tuple[int, ...], ...]  # K_l after each iteration


@dataclass(frozen=True)
class Curve:
    """The points of a curve: a search, budgets of one size, or one point for a model without budgets."""

    name: str  # in the figure
    model: str  # as the user wrote it
    loaded: Loaded
    policy: str | None = None  # None for the model's own
    search: SearchPath | None = None
    sizes: bool = False  # the same budget in every layer

    @classmethod
    def of(
        cls,
        model: str | Path | Loaded | LanguageModel,
        policy: str | None = None,
        search: SearchPath | None = None,
        sizes: bool = False,
        name: str | None = None,
    ) -> Curve:
        """The curve of a model, by default under the model's name."""
        found = load(model)
        if sizes:
            about = found.description
            check_selects(Budgets(SMALLEST), import_policy(policy or about.policy), about.selects)
        return cls(name or found.name, found.name, found, policy, search, sizes)


class Line(NamedTuple):
    """A curve, or the baseline, with the budgets of its points and what the losses of each point depend on."""

    curve: Curve
    choices: list[Budgets | None]
    policy: str | None
    keys: list[Key]


class Plan(NamedTuple):
    """The curves to measure and their rows; loads no weights. A baseline comes first."""

    context: int
    texts: dict[str, list[Batch]]
    lines: list[Line]

    @property
    def keys(self) -> list[Key]:
        """The keys of all points, line by line."""
        return [key for line in self.lines for key in line.keys]


def measure_tradeoff(
    curves: Sequence[Curve],
    data: Data,
    *,
    baseline: str | Path | Loaded | LanguageModel | Curve | None = None,
    sizes: Sequence[int] = (),
    extend: str | Path | None = None,
    rows: int | None = None,
    skip: int | Searched = 0,
    context: int | None = None,
    batch: int = 8,
    seed: int = 0,
    record: str | Path | None = None,
    progress: Progress | None = None,
    team: Team | None = None,
) -> Tradeoff:
    """Measure every curve on the same rows, and read off where it reaches the baseline's loss.

    Args:
        curves: those of one name become one curve.
        data: texts: sources as `selattn.data.documents` takes them, or `Text` objects, one, several, or by name.
        baseline: the model whose loss the curves are to reach.
        sizes: of the points; by default the context, and halves of it down to 2.
        extend: a record of the same rows, to whose curves and baseline these are added.
        rows: of each text; None for all.
        skip: leave out the rows that a search has seen: their number, or the search (`selattn.pruning.searched`).
        context: N; None for the context size of the first model.
        batch: rows at a time.
        seed: for the record.
        record: file of the record; until it is written, finished points are stored next to it.
        progress: shows the progress; None shows nothing.
        team: the processes that share the work; None for those that torchrun has started.
    """
    progress = progress or Progress()
    parsed = list(curves)
    base = baseline if baseline is None or isinstance(baseline, Curve) else Curve.of(baseline)
    before = None if extend is None else read_curves(Path(extend), parsed, base)
    with contextlib.ExitStack() as stack:
        team = team or stack.enter_context(contextlib.closing(Team()))
        plan = make_plan(
            parsed, base, named_texts(data), sizes, rows, skip, context, batch, team.leads and progress.shows
        )
        texts = {
            name: TextSize(sum(len(batch.input_ids) for batch in batches), sum(batch.tokens for batch in batches))
            for name, batches in plan.texts.items()
        }
        frame = Tradeoff(plan.context, texts, skip_name(skip), None, ())
        if before is not None:
            _check_frame(frame, before[1], str(extend))
        parts = stack.enter_context(parts_of(record, plan.keys, team, progress))
        shared = sum(len(batch.input_ids) for batches in plan.texts.values() for batch in team.share(batches))
        progress.begin(shared * (len(plan.keys) - parts.known(plan.keys)), "measuring")
        measured = [(line.curve, _measure(line, plan, team, parts, progress)) for line in plan.lines]
        progress.end()
        found = _collect(frame, measured, base is not None, before)
        parts.write(found, seed)
    return found


def make_plan(
    curves: Sequence[Curve],
    baseline: Curve | None,
    texts: Mapping[str, Text],
    sizes: Sequence[int] = (),
    rows: int | None = None,
    skip: int | Searched = 0,
    context: int | None = None,
    batch: int = 8,
    progress: bool = False,
) -> Plan:
    """Which points there are, and the key of each; tokenizes texts that the cache does not have."""
    if baseline is not None and (baseline.sizes or baseline.search):
        raise SelattnError(f"the baseline is a model as it is, not {baseline.name}: give MODEL or NAME=MODEL")
    everybody = (*filter(None, [baseline]), *curves)
    if len({curve.loaded.tokenizer.fingerprint for curve in everybody}) > 1:  # losses are of the same tokens
        raise SelattnError("these models have different vocabularies: their losses cannot be compared")
    context = context or curves[0].loaded.description.context
    for curve in everybody:
        check_context(curve.model, curve.loaded, context)
    if sizes and max(sizes) > context:
        raise SelattnError(f"--sizes has {max(sizes)}, more than the context of {context} tokens: leave it out")
    if sizes and not any(curve.sizes or curve.search for curve in curves):
        raise SelattnError(
            "--sizes would change nothing: no curve has several points: write MODEL@SEARCH or MODEL@sizes:POLICY"
        )
    ordered = sorted(set(sizes or halves(context)), reverse=True)
    points = [(curve, *_points(curve, ordered, context)) for curve in everybody]
    tokenizer = curves[0].loaded.tokenizer
    cut = {name: text.rows(tokenizer, context, progress=progress) for name, text in texts.items()}
    around = {
        "texts": {name: text_key(text, cut[name], rows, skip) for name, text in texts.items()},
        "context": context,
        "rows": rows,
        "skip": skip_name(skip),
        "batch": batch,
    }
    lines = [
        Line(curve, choices, policy, [_key(curve, each, policy, around) for each in choices])
        for curve, choices, policy in points
    ]
    return Plan(context, {name: make_batches(each.take(rows, skip), batch) for name, each in cut.items()}, lines)


def read_curves(file: Path, curves: Sequence[Curve], baseline: Curve | None) -> tuple[Provenance, Tradeoff]:
    """The record that these curves are to extend."""
    found = read_record(file)
    if "records" in found:
        raise SelattnError(f"{file} is of several seeds: give the record of one of them")
    before = as_body(found, Tradeoff, file)
    if baseline is not None:
        raise SelattnError(f"{file} says what the baseline is: leave --baseline out")
    for name in {curve.name for curve in curves} & {curve.name for curve in before.curves}:
        raise SelattnError(f"{file} has a curve {name!r} already: give this one another name, NAME=MODEL")
    return as_body(found, Provenance, file), before


def _check_frame(frame: Tradeoff, before: Tradeoff, file: str) -> None:
    for what in ("context", "texts", "skip"):
        there, here = getattr(before, what), getattr(frame, what)
        if there != (portable(here) if isinstance(here, str) else here):
            raise SelattnError(f"{file} was measured with the {what} {there}, this would be {here}")


def _points(curve: Curve, sizes: Sequence[int], context: int) -> tuple[list[Budgets | None], str | None]:
    """The budgets of a curve's points, and the policy."""
    if curve.search is not None:
        search = curve.search
        if not search.budgets:
            raise SelattnError(f"nothing has been searched in {search.folder} yet: resume that search")
        if search.context != context:
            raise SelattnError(f"{search.folder} was searched at a context of {search.context}, not {context}")
        return [Budgets(budgets) for budgets in nearest(search.budgets, sizes)], search.policy
    if curve.sizes:
        return [Budgets(size) for size in sizes], curve.policy
    return [None], None


def _key(curve: Curve, budgets: Budgets | None, policy: str | None, around: Key) -> Key:
    given = budgets and budgets.to_json()
    return {"part": "point", "budgets": given, "policy": policy, "fingerprint": curve.loaded.fingerprint, **around}


def _measure(line: Line, plan: Plan, team: Team, parts: Parts, progress: Progress) -> list[Point]:
    """The points of a curve; its model is loaded only if one of them is missing."""
    loaded, points = line.curve.loaded, []
    for budgets, key in zip(line.choices, line.keys, strict=True):

        def losses(budgets: Budgets | None = budgets) -> dict[str, float]:
            return measure(loaded.model, plan.texts, budgets, line.policy, team, progress)

        loss = parts.get(key, dict[str, float], losses)
        size = kv_size(loaded.description, plan.context, budgets, line.policy)
        each = None if budgets is None else budgets.for_layers(loaded.description.layers)
        points.append(Point(size.mean, size.memory_factor, size.held, size.read, each, loss))
    return points


def _collect(
    frame: Tradeoff,
    measured: Sequence[tuple[Curve, list[Point]]],
    based: bool,
    before: tuple[Provenance, Tradeoff] | None,
) -> Tradeoff:
    """The record, with the memory factor of each curve at the baseline's loss."""
    base = None if before is None else before[1].baseline
    if based:
        (curve, (point,)), *measured = measured
        base = Baseline(**vars(point), name=curve.name, model=curve.model, training_seed=curve.loaded.training_seed)
    losses = {} if base is None else base.loss
    curves = [] if before is None else [*before[1].curves]
    for name in dict.fromkeys(curve.name for curve, _ in measured):
        same = [(curve, line) for curve, line in measured if curve.name == name]
        of = tuple(
            CurveModel(curve.model, curve.loaded.training_seed, curve.policy)
            if curve.search is None
            else CurveModel(curve.model, curve.loaded.training_seed, curve.search.policy, str(curve.search.folder))
            for curve, _ in same
        )
        points = tuple(point for _, line in same for point in line)
        curves.append(MeasuredCurve(name, of, points, at_losses(points, losses, frame.context)))
    origin = None if before is None else Origin(before[0].command, before[0].date, before[0].machine)
    return replace(frame, baseline=base, curves=tuple(curves), extends=origin)


def nearest(paths: Sequence[tuple[int, ...]], sizes: Iterable[float]) -> list[tuple[int, ...]]:
    """The budgets of a path whose mean is nearest to each size, the largest first, each once."""

    def distance(budgets: tuple[int, ...], size: float) -> float:
        return abs(math.log(sum(budgets) / len(budgets) / size))

    chosen = {min(paths, key=functools.partial(distance, size=size)) for size in sizes}
    return sorted(chosen, key=lambda k: -sum(k))


def measure(
    model: LanguageModel,
    texts: Mapping[str, Sequence[Batch]],
    budgets: Budgets | None,
    policy: str | None,
    team: Team,
    progress: Progress,
) -> dict[str, float]:
    """The losses of a point, by the name of the text."""
    how = (budgets, policy, team, progress.advance)
    return {name: log_perplexity(model, batches, *how) for name, batches in texts.items()}


def halves(context: int) -> list[int]:
    """The default sizes: N, N / 2, ... down to the smallest budget."""
    sizes = [context]
    while sizes[-1] // 2 >= SMALLEST:
        sizes.append(sizes[-1] // 2)
    return sizes


class Reached(NamedTuple):
    """The KV size at which a curve reaches a loss."""

    size: float
    at_most: bool  # the curve ends there with a smaller loss, so the true size is smaller


def size_at(points: Iterable[tuple[float, float]], loss: float) -> Reached | None:
    """The KV size at which a curve of points (size, loss) reaches a loss; between points log(size) is interpolated.

    Going down from the largest size, it is where the loss first exceeds the wanted one. None if the largest size
    already exceeds it; the smallest size if none does. NaN counts as larger than every number.
    """
    ordered = sorted(points, key=lambda point: -point[0])
    limit = loss * (1 + 1e-6)  # budgets that evict nothing give the baseline's own loss, but for rounding
    if not ordered[0][1] <= limit:
        return None
    for (larger, low), (smaller, high) in itertools.pairwise(ordered):
        if not high <= limit:
            share = max(0.0, loss - low) / (high - low) if math.isfinite(high) else 0.0
            return Reached(larger ** (1 - share) * smaller**share, at_most=False)
    return Reached(ordered[-1][0], at_most=True)


def at_losses(points: Sequence[Point], losses: Mapping[str, float], context: int) -> dict[str, AtLoss | None]:
    """Where the points reach the loss of each text; None if they do not."""
    found = {}
    for text, loss in losses.items():
        reached = size_at([(point.kv_size, point.loss[text]) for point in points], loss)
        found[text] = None if reached is None else AtLoss(reached.size, context / reached.size, reached.at_most)
    return found
