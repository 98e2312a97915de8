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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from selattn.cache import Budgets, import_policy
from selattn.cache.budgets import SMALLEST
from selattn.errors import SelattnError
from selattn.evaluation.losses import Batch, log_perplexity, make_batches
from selattn.evaluation.results import (
    AtLoss,
    Baseline,
    CurveModel,
    MeasuredCurve,
    Origin,
    Point,
    TextSize,
    Tradeoff,
)
from selattn.evaluation.subjects import check_context, kv_size
from selattn.evaluation.text import Data, Searched, Text, named_texts, skip_name, text_key
from selattn.models.evicting import check_selects
from selattn.models.loading import Loaded, load
from selattn.models.seam import Description, LanguageModel
from selattn.utils.distributed import Team
from selattn.utils.journal import Key, Parts, kept_parts, write_whole
from selattn.utils.progress import Progress
from selattn.utils.records import Provenance, as_body, portable, read_record


@dataclass(frozen=True)
class SearchPath:
    """The path of a search, which a curve follows; `selattn.pruning.read_search` reads one.

    Attributes:
        folder: of the search.
        context: N of the search.
        policy: who leaves.
        budgets: K_l after each iteration.
    """

    folder: Path
    context: int
    policy: str
    budgets: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Curve:
    """A line of the figure: along a search, for budgets of one size, or one point for a model as it is.

    Attributes:
        name: what it is called in the figure.
        model: as the user wrote it.
        loaded: the model.
        policy: who leaves; None for the model's own.
        search: the path that is followed.
        sizes: whether the budgets are the same in every layer.
    """

    name: str
    model: str
    loaded: Loaded
    policy: str | None = None
    search: SearchPath | None = None
    sizes: bool = False

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


@dataclass(frozen=True)
class Line:
    """The points of a curve, or the one of the baseline, that are to be measured.

    Attributes:
        curve: what it is called, and its model.
        choices: the budgets of each point.
        policy: who leaves.
        keys: what the losses of each point depend on.
    """

    curve: Curve
    choices: list[Budgets | None]
    policy: str | None
    keys: list[Key]


@dataclass(frozen=True)
class Plan:
    """What is to be measured; no weights are loaded yet.

    Attributes:
        context: N.
        texts: the rows that all curves are measured on.
        lines: the baseline's if there is one, then those of the curves.
    """

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
        curves: of models along a search, with equal budgets, or as they are. Those of one name are one curve.
        data: texts: sources as `selattn.data.documents` takes them, or `Text` objects, one, several, or by name.
        baseline: the model whose loss the curves are to reach.
        sizes: of the points; by default the context, and halves of it down to 2.
        extend: a record of the same rows, whose curves and baseline these join.
        rows: of each text; None for all.
        skip: leave out what a search has seen: one on so many rows, or `Searched` (see `selattn.pruning.searched`).
        context: N; None for the context size of the first model.
        batch: rows at a time.
        seed: for the record.
        record: where the record goes; meanwhile the points that are done lie beside it.
        progress: is told how many rows are done; None shows nothing.
        team: the processes that share the work; None for those that torchrun has started.
    """
    progress = progress or Progress()
    parsed = list(curves)
    base = baseline if baseline is None or isinstance(baseline, Curve) else Curve.of(baseline)
    before = None if extend is None else read_curves(Path(extend), parsed, base)
    with contextlib.ExitStack() as stack:
        if team is None:
            team = stack.enter_context(contextlib.closing(Team()))
        plan = make_plan(
            parsed, base, named_texts(data), sizes, rows, skip, context, batch, team.leads and progress.shows
        )
        texts = {name: _size(batches) for name, batches in plan.texts.items()}
        frame = Tradeoff(plan.context, texts, skip_name(skip), None, ())
        if before is not None:
            _check_frame(frame, before[1], str(extend))
        path = None if record is None else Path(record)
        parts = stack.enter_context(kept_parts(path, plan.keys, team, progress))
        shared = sum(len(batch.input_ids) for batches in plan.texts.values() for batch in team.share(batches))
        progress.begin(shared * (len(plan.keys) - parts.known(plan.keys)), "measuring")
        measured = [(line.curve, _measure(line, plan, team, parts, progress.advance)) for line in plan.lines]
        progress.end()
        found = _collect(frame, measured, base is not None, before)
        if path is not None and team.leads:
            write_whole(path, found, seed)
            parts.remove()
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
    """Which points there are, and what each depends on; texts are tokenized if need be. See `measure_tradeoff`."""
    if baseline is not None and (baseline.sizes or baseline.search):
        raise SelattnError(f"the baseline is a model as it is, not {baseline.name}: give MODEL or NAME=MODEL")
    everybody = (*filter(None, [baseline]), *curves)
    _check_vocabularies([curve.loaded for curve in everybody])
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
    """A record to which these are to be added."""
    found = read_record(file)
    if "records" in found:
        raise SelattnError(f"{file} is of several seeds: give the record of one of them")
    before = as_body(found, Tradeoff, file)
    if baseline is not None:
        raise SelattnError(f"{file} says what the baseline is: leave --baseline out")
    for name in {curve.name for curve in curves} & {curve.name for curve in before.curves}:
        raise SelattnError(f"{file} has a curve {name!r} already: give this one another name, NAME=MODEL")
    return as_body(found, Provenance, file), before


def _check_vocabularies(models: Sequence[Loaded]) -> None:
    """Losses can be compared only over the same tokens."""
    if len({model.tokenizer.fingerprint for model in models}) > 1:
        raise SelattnError("these models have different vocabularies: their losses cannot be compared")


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
            raise SelattnError(f"nothing has been searched in {search.folder} yet: go on with that search")
        if search.context != context:
            raise SelattnError(f"{search.folder} was searched at a context of {search.context}, not {context}")
        return [Budgets(budgets) for budgets in nearest(search.budgets, sizes)], search.policy
    if curve.sizes:
        return [Budgets(size) for size in sizes], curve.policy
    return [None], None


def _key(curve: Curve, budgets: Budgets | None, policy: str | None, around: Key) -> Key:
    """What the losses of a point depend on."""
    given = budgets and budgets.to_json()
    return {"part": "point", "budgets": given, "policy": policy, "fingerprint": curve.loaded.fingerprint, **around}


def _measure(line: Line, plan: Plan, team: Team, parts: Parts, tick: Callable[[int], None]) -> list[Point]:
    """The points of a curve; its model is loaded only if one of them is left to measure."""
    loaded = line.curve.loaded

    def losses(budgets: Budgets | None) -> dict[str, float]:
        return measure(loaded.model, plan.texts, budgets, line.policy, team, tick)

    found = [
        parts.get(key, dict[str, float], functools.partial(losses, k))
        for k, key in zip(line.choices, line.keys, strict=True)
    ]
    return [
        _point(loaded.description, plan.context, k, line.policy, each)
        for k, each in zip(line.choices, found, strict=True)
    ]


def _point(
    model: Description, context: int, budgets: Budgets | None, policy: str | None, loss: dict[str, float]
) -> Point:
    size = kv_size(model, context, budgets, policy)
    each = None if budgets is None else budgets.for_layers(model.layers)
    return Point(size.mean, size.factor, size.held, size.read, each, loss)


def _collect(
    frame: Tradeoff,
    measured: Sequence[tuple[Curve, list[Point]]],
    based: bool,
    before: tuple[Provenance, Tradeoff] | None,
) -> Tradeoff:
    """The record, with where the curves reach the baseline's losses."""
    base = None if before is None else before[1].baseline
    if based:
        (curve, (point,)), *measured = measured
        base = Baseline.of(point, curve.name, curve.model, curve.loaded.training_seed)
    losses = {} if base is None else base.loss
    curves = [] if before is None else [*before[1].curves]
    for name in dict.fromkeys(curve.name for curve, _ in measured):
        same = [(curve, points) for curve, points in measured if curve.name == name]
        of = tuple(_model(curve) for curve, _ in same)
        points = tuple(point for _, points in same for point in points)
        curves.append(MeasuredCurve(name, of, points, at_losses(points, losses, frame.context)))
    origin = None if before is None else Origin(before[0].command, before[0].date, before[0].machine)
    return replace(frame, baseline=base, curves=tuple(curves), extends=origin)


def _model(curve: Curve) -> CurveModel:
    if curve.search is None:
        return CurveModel(curve.model, curve.loaded.training_seed, curve.policy)
    return CurveModel(curve.model, curve.loaded.training_seed, curve.search.policy, str(curve.search.folder))


def _size(batches: Sequence[Batch]) -> TextSize:
    """How much text that is."""
    return TextSize(sum(len(batch.input_ids) for batch in batches), sum(batch.tokens for batch in batches))


def nearest(paths: Sequence[tuple[int, ...]], sizes: Iterable[float]) -> list[tuple[int, ...]]:
    """Of the budgets of a path those whose mean is nearest to each size, the largest first, each once."""

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
    tick: Callable[[int], None] | None = None,
) -> dict[str, float]:
    """The losses of a point, by the name of the text; `tick` gets the number of rows after each batch."""
    return {name: log_perplexity(model, batches, budgets, policy, team, tick) for name, batches in texts.items()}


def halves(context: int) -> list[int]:
    """The sizes at which curves are measured unless others are asked for: N, N / 2, ... down to the smallest budget."""
    sizes = [context]
    while sizes[-1] // 2 >= SMALLEST:
        sizes.append(sizes[-1] // 2)
    return sizes


@dataclass(frozen=True)
class Reached:
    """Where a curve reaches a loss.

    Attributes:
        size: KV size.
        at_most: whether the curve ends there with a smaller loss, so that the true size is smaller, too.
    """

    size: float
    at_most: bool


def size_at(points: Iterable[tuple[float, float]], loss: float) -> Reached | None:
    """The KV size at which a curve, (size, loss) by point, reaches a loss: between points log(size) is interpolated.

    Going from the largest size down, it is where the loss first exceeds the wanted one. None if it does already at the
    largest; the smallest size if it never does. A loss that is not a number counts as larger than every other.
    """
    ordered = sorted(points, key=lambda point: -point[0])
    limit = loss * (1 + 1e-6)  # budgets that drop nothing give the baseline's own loss, but for rounding
    if not ordered[0][1] <= limit:
        return None
    for (larger, low), (smaller, high) in itertools.pairwise(ordered):
        if not high <= limit:
            share = max(0.0, loss - low) / (high - low) if math.isfinite(high) else 0.0
            return Reached(larger ** (1 - share) * smaller**share, at_most=False)
    return Reached(ordered[-1][0], at_most=True)


def at_losses(points: Sequence[Point], losses: Mapping[str, float], context: int) -> dict[str, AtLoss | None]:
    """Where the points of a curve reach the loss of each text; None if they do not."""
    found = {}
    for text, loss in losses.items():
        reached = size_at([(point.kv_size, point.loss[text]) for point in points], loss)
        found[text] = None if reached is None else AtLoss(reached.size, context / reached.size, reached.at_most)
    return found
