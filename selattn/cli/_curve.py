"""`selattn eval --curve`: one figure and one record of the trade-off for several models and policies."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selattn.cli._text import texts_of
from selattn.errors import SelattnError

if TYPE_CHECKING:
    from rich.console import Console

    from selattn.cache import Budgets
    from selattn.evaluate.batches import Batch
    from selattn.evaluate.curve import Curve, Point
    from selattn.evaluate.team import Team


def run_curve(args: argparse.Namespace, console: Console) -> int:
    """Measure every curve on the same rows, read off where it reaches the baseline, draw and record."""
    from selattn.cli._bar import rows_bar
    from selattn.evaluate.curve import Curve, halves, measure
    from selattn.evaluate.subjects import load_model
    from selattn.evaluate.team import Team
    from selattn.models.summary import read_config
    from selattn.models.zoo import find_model

    if not args.data or args.tasks or args.speed:
        raise SelattnError("--curve measures the loss on --data, and nothing else")
    if args.figure and args.figure.suffix not in (".png", ".svg", ".pdf"):
        raise SelattnError(f"--figure must end with .png, .svg or .pdf, not {args.figure}")
    curves = [Curve.parse(text) for text in args.models]
    baseline = None if args.baseline is None else find_model(args.baseline)
    check_vocabularies([curve.folder for curve in curves] + ([baseline] if baseline else []))
    context = args.context or read_config(curves[0].folder).max_position_embeddings
    sizes = sorted({size for size in args.sizes or halves(context) if size <= context}, reverse=True)
    if not sizes:
        raise SelattnError(f"--sizes are all larger than the context of {context} tokens: give smaller ones")
    plan = [(curve, *points_of(curve, sizes, context)) for curve in curves]
    team = Team()
    try:
        texts = make_texts(args, curves[0].folder, context, team)
        each = args.batch * sum(len(team.share(batches)) for batches in texts.values())
        todo = each * (sum(len(choices) for _, choices, _ in plan) + (baseline is not None))
        with rows_bar("measuring", todo, team.leads) as tick:
            base = None
            if baseline is not None:
                (base,) = measure(load_model(baseline), texts, context, [None], None, team, tick)
            found = [
                (curve, policy, measure(load_model(curve.folder), texts, context, choices, policy, team, tick))
                for curve, choices, policy in plan
            ]
    finally:
        team.close()
    if team.leads:
        data = collect(args, context, texts, found, base)
        write(args, data, console)
        show_curves(data, console)
    return 0


def check_vocabularies(folders: Sequence[Path]) -> None:
    """Losses can be compared only over the same tokens."""
    from selattn.evaluate.subjects import tokenizer_of

    if len({tokenizer_of(folder).fingerprint for folder in folders}) > 1:
        raise SelattnError("these models have different vocabularies: their losses cannot be compared")


def make_texts(args: argparse.Namespace, folder: Path, context: int, team: Team) -> dict[str, list[Batch]]:
    """The rows that all curves are measured on."""
    from selattn.evaluate import make_batches
    from selattn.evaluate.subjects import tokenizer_of

    tokenizer = tokenizer_of(folder)
    rows = {name: text.rows(tokenizer, context, progress=team.leads) for name, text in texts_of(args).items()}
    return {name: make_batches(found.take(args.rows, args.skip), args.batch) for name, found in rows.items()}


def points_of(curve: Curve, sizes: Sequence[int], context: int) -> tuple[list[Budgets | None], str | None]:
    """The budgets of a curve's points, and the policy."""
    from selattn.cache import Budgets
    from selattn.evaluate.curve import nearest
    from selattn.prune.path import read_path, read_settings

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


def collect(
    args: argparse.Namespace,
    context: int,
    texts: dict[str, list[Batch]],
    found: list[tuple[Curve, str | None, list[Point]]],
    base: Point | None,
) -> dict[str, Any]:
    """The record."""
    from selattn.evaluate.curve import size_at

    curves = []
    for curve, policy, points in found:
        reached = {text: size_at(points, text, loss) for text, loss in (base.losses if base else {}).items()}
        curves.append(
            {
                "name": curve.name,
                "model": curve.model,
                "policy": policy,
                "search": None if curve.search is None else str(curve.search),
                "points": [point.to_json() for point in points],
                "at_the_baselines_loss": {text: at and at.to_json(context) for text, at in reached.items()},
            }
        )
    sizes = {
        name: {"rows": sum(len(b.input_ids) for b in batches), "tokens": sum(b.tokens for b in batches)}
        for name, batches in texts.items()
    }
    baseline = None if base is None else {"name": args.baseline, **base.to_json()}
    return {"context": context, "texts": sizes, "skip": args.skip, "baseline": baseline, "curves": curves}


def write(args: argparse.Namespace, data: dict[str, Any], console: Console) -> None:
    """The record and the figure, as far as they are wanted."""
    from selattn.records import write_record
    from selattn.report.tradeoff import draw_tradeoff

    if args.record:
        write_record(args.record, data, seed=args.seed)
        console.print(f"recorded in {args.record}", soft_wrap=True)
    figure = args.figure or (args.record.with_suffix(".png") if args.record else None)
    if figure:
        draw_tradeoff(figure, data)
        console.print(f"drawn in {figure}", soft_wrap=True)


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
    """The memory factor at the baseline's loss; a curve that ends below that loss gives a lower bound."""
    if reached is None:
        return "-"
    return f"{'≥ ' if reached['at_least'] else ''}{reached['memory_factor']:.2f}"
