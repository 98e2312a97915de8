"""`selattn eval --curve`: one figure and one record of the trade-off for several models and policies."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selattn.cli import _options
from selattn.cli._text import skipped, texts_of
from selattn.errors import SelattnError

if TYPE_CHECKING:
    from rich.console import Console

    from selattn.evaluation.batches import Batch
    from selattn.evaluation.curve import Curve, Point
    from selattn.evaluation.parts import Key, Parts
    from selattn.eviction import Budgets
    from selattn.models.loading import Loaded
    from selattn.utils.distributed import Team


FORMATS = (".png", ".svg", ".pdf")


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


def run_curve(args: argparse.Namespace, console: Console, team: Team) -> None:
    """Measure every curve on the same rows, read off where it reaches the baseline, draw and record."""
    from selattn.cli._parts import kept_parts, write_whole
    from selattn.evaluation.curve import Curve, halves
    from selattn.evaluation.subjects import check_context
    from selattn.utils.progress import ProgressLine

    figure_of(args)  # refuses one that cannot be drawn, before anything is measured
    curves = [Curve.parse(text) for text in args.models]
    baseline = None if args.baseline is None else Curve.parse(args.baseline)
    before = None if args.extend is None else read_curves(args.extend, curves, baseline)
    if baseline is not None and (baseline.sizes or baseline.search):
        raise SelattnError(f"the baseline is a model as it is, not {args.baseline}: give MODEL or NAME=MODEL")
    check_vocabularies([curve.loaded for curve in (*curves, *filter(None, [baseline]))])
    context = args.context or curves[0].loaded.description.context
    for curve in (*curves, *filter(None, [baseline])):
        check_context(curve.model, curve.loaded.description, context)
    if args.sizes and max(args.sizes) > context:
        raise SelattnError(f"--sizes has {max(args.sizes)}, more than the context of {context} tokens: leave it out")
    if args.extend is None and not any(curve.sizes or curve.search for curve in curves):
        _options.refuse(args, ["sizes"], "no curve has several points: write MODEL@SEARCH or MODEL@sizes:POLICY")
    sizes = sorted(set(args.sizes or halves(context)), reverse=True)
    points = [(curve, *points_of(curve, sizes, context)) for curve in (*filter(None, [baseline]), *curves)]
    texts, around = make_texts(args, curves[0].loaded, context, team)
    frame = {
        "context": context,
        "texts": {name: sizes_of(batches) for name, batches in texts.items()},
        "skip": args.skip,
    }
    for what, value in frame.items():
        if before is not None and before[what] != value:
            raise SelattnError(f"{args.extend} was measured with the {what} {before[what]}, this would be {value}")
    lines = [
        Line(curve, choices, policy, keys_of(choices, policy, {"fingerprint": curve.loaded.fingerprint, **around}))
        for curve, choices, policy in points
    ]
    keys = [key for line in lines for key in line.keys]
    with kept_parts(args.record, keys, team, console) as parts:
        each = args.batch * sum(len(team.share(batches)) for batches in texts.values())
        with ProgressLine("measuring", each * (len(keys) - parts.known(keys)), shown=team.leads) as shown:
            found = [(line, measure_line(line, texts, context, team, parts, shown.advance)) for line in lines]
        if not team.leads:
            return
        base = before and before["baseline"]
        if baseline is not None:
            trained = {"model": baseline.model, "training_seed": baseline.loaded.training_seed}
            base = {"name": baseline.name, **trained, **found.pop(0)[1][0].to_json()}
        data = {**frame, "baseline": base, "curves": collect(context, found, base["loss"] if base else {})}
        if before is not None:
            origin = {name: before[name] for name in ("command", "date", "machine")}
            data |= {"extends": origin, "curves": [*before["curves"], *data["curves"]]}
        if args.record:
            write_whole(args.record, data, args.seed)
        figure = draw_curves(data, args)
        parts.remove()
        show_files(args.record, figure, console)
        show_curves(data, console)


def check_vocabularies(models: Sequence[Loaded]) -> None:
    """Losses can be compared only over the same tokens."""

    if len({model.tokenizer.fingerprint for model in models}) > 1:
        raise SelattnError("these models have different vocabularies: their losses cannot be compared")


def make_texts(args: argparse.Namespace, model: Loaded, context: int, team: Team) -> tuple[dict[str, list[Batch]], Key]:
    """The rows that all curves are measured on, and what they depend on."""
    from selattn.cli._parts import text_key
    from selattn.evaluation import make_batches

    tokenizer, texts = model.tokenizer, texts_of(args)
    rows = {name: text.rows(tokenizer, context, progress=team.leads) for name, text in texts.items()}
    skip = skipped(args)
    read = {name: text_key(text, rows[name], args.rows, skip) for name, text in texts.items()}
    around = {"texts": read, "context": context, "rows": args.rows, "skip": args.skip, "batch": args.batch}
    return {name: make_batches(found.take(args.rows, skip), args.batch) for name, found in rows.items()}, around


def points_of(curve: Curve, sizes: Sequence[int], context: int) -> tuple[list[Budgets | None], str | None]:
    """The budgets of a curve's points, and the policy."""
    from selattn.evaluation.curve import nearest
    from selattn.eviction import Budgets
    from selattn.pruning.path import read_path, read_settings

    if curve.search is not None:
        settings, path = read_settings(curve.search), read_path(curve.search)
        if not path:
            raise SelattnError(f"nothing has been searched in {curve.search} yet: go on with that search")
        if settings["context"] != context:
            raise SelattnError(f"{curve.search} was searched at a context of {settings['context']}, not {context}")
        return [Budgets(budgets) for budgets in nearest([step.budgets for step in path], sizes)], settings["policy"]
    if curve.sizes:
        return [Budgets(size) for size in sizes], curve.policy
    return [None], None


def keys_of(choices: Sequence[Budgets | None], policy: str | None, around: Key) -> list[Key]:
    """What the losses of each point depend on."""
    return [{"part": "point", "budgets": k and k.to_json(), "policy": policy, **around} for k in choices]


def measure_line(
    line: Line,
    texts: Mapping[str, Sequence[Batch]],
    context: int,
    team: Team,
    parts: Parts,
    tick: Callable[[int], None],
) -> list[Point]:
    """The points of a curve; its model is loaded only if one of them is left to measure."""
    import functools

    from selattn.evaluation.curve import Point, measure

    loaded, described = line.curve.loaded, line.curve.loaded.description

    def losses(budgets: Budgets | None) -> dict[str, float]:
        return measure(loaded.model, texts, budgets, line.policy, team, tick)

    found = [parts.get(key, functools.partial(losses, k)) for k, key in zip(line.choices, line.keys, strict=True)]
    return [Point.make(described, context, k, line.policy, each) for k, each in zip(line.choices, found, strict=True)]


def read_curves(file: Path, curves: Sequence[Curve], baseline: Curve | None) -> dict[str, Any]:
    """A record to which these are to be added."""
    from selattn.report.seeds import merge_curves
    from selattn.utils.records import read_record

    found = read_record(file)
    if "curves" not in found or "records" in found:
        raise SelattnError(f"{file} is not a record of 'selattn eval --curve'")
    merge_curves({str(file): found})  # reads all of it: half a record is refused before anything is measured
    if baseline is not None:
        raise SelattnError(f"{file} says what the baseline is: leave --baseline out")
    for name in {curve.name for curve in curves} & {curve["name"] for curve in found["curves"]}:
        raise SelattnError(f"{file} has a curve {name!r} already: give this one another name, NAME=MODEL")
    return found


def collect(
    context: int, found: Sequence[tuple[Line, list[Point]]], losses: Mapping[str, float]
) -> list[dict[str, Any]]:
    """The curves for the record, with where they reach the baseline's losses.

    Those of one name are one curve: local models of several windows are its points.
    """
    from selattn.evaluation.curve import at_losses

    curves = []
    for name in dict.fromkeys(line.curve.name for line, _ in found):
        parts = [part for part in found if part[0].curve.name == name]
        points = [point.to_json() for _, points in parts for point in points]
        of = [
            {
                "model": line.curve.model,
                "training_seed": line.curve.loaded.training_seed,
                "policy": line.policy,
                "search": None if line.curve.search is None else str(line.curve.search),
            }
            for line, _ in parts
        ]
        reached = at_losses(points, losses, context)
        curves.append({"name": name, "of": of, "points": points, "at_the_baselines_loss": reached})
    return curves


def sizes_of(batches: Sequence[Batch]) -> dict[str, int]:
    """How much text that is."""
    return {"rows": sum(len(batch.input_ids) for batch in batches), "tokens": sum(batch.tokens for batch in batches)}


def figure_of(args: argparse.Namespace) -> Path | None:
    """Where the figure belongs, if one is wanted: --figure, or beside the record; raises if it cannot go there."""
    from selattn.utils.records import check_output

    figure: Path | None = args.figure or (args.record.with_suffix(".png") if args.record else None)
    if figure and figure.suffix not in FORMATS:
        raise SelattnError(f"--figure must end with {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, not {figure}")
    if figure and args.record and figure.absolute() == args.record.absolute():
        raise SelattnError(f"the figure would take the place of the record {figure}: let the record end with .json")
    check_output(figure)
    return figure


def draw_curves(data: dict[str, Any], args: argparse.Namespace) -> Path | None:
    """The figure, if one is wanted."""
    from selattn.report.tradeoff import draw_tradeoff

    figure = figure_of(args)
    return figure and draw_tradeoff(figure, data)


def show_files(record: Path | None, figure: Path | None, console: Console) -> None:
    """Where they are, of those that were written."""
    for what, file in (("recorded", record), ("drawn", figure)):
        if file:
            console.print(f"{what} in {file}", soft_wrap=True)


def show_curves(data: dict[str, Any], console: Console) -> None:
    """Where each curve reaches the baseline's loss."""
    from rich.table import Table

    for text in data["texts"]:
        table = Table("curve", title=text, title_justify="left")
        for heading in ("largest: loss", "smallest: loss", "memory factor at the baseline's loss"):
            table.add_column(heading, justify="right")
        for curve in data["curves"]:
            points = sorted(curve["points"], key=lambda point: -point["kv_size"])
            ends = [f"{point['kv_size']:g}: {point['loss'][text]:.4f}" for point in (points[0], points[-1])]
            table.add_row(curve["name"], *ends, factor(curve["at_the_baselines_loss"].get(text)))
        console.print(table)
        if data["baseline"] is not None:
            console.print(f"baseline {data['baseline']['name']}: {data['baseline']['loss'][text]:.4f}", soft_wrap=True)


def factor(reached: dict[str, Any] | None) -> str:
    """The memory factor at the baseline's loss; a curve that ends below that loss gives a lower bound.

    Of several seeds the mean, and from where to where they reach.
    """
    if reached is None:
        return "-"
    mean, each = reached["memory_factor"], reached.get("memory_factors", [])
    if mean is None:
        return " / ".join("-" if one is None else f"{one:.2f}" for one in each)
    spread = f" ({min(each):.2f} to {max(each):.2f})" if each else ""
    return f"{'≥ ' if reached['at_least'] else ''}{mean:.2f}{spread}"
