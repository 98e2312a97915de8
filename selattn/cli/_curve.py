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

    if not args.data or args.tasks or args.speed:
        raise SelattnError("--curve measures the loss on --data, and nothing else")
    if args.figure and args.figure.suffix not in (".png", ".svg", ".pdf"):
        raise SelattnError(f"--figure must end with .png, .svg or .pdf, not {args.figure}")
    curves = [Curve.parse(text) for text in args.models]
    baseline = None if args.baseline is None else Curve.parse(args.baseline)
    if baseline is not None and (baseline.sizes or baseline.search):
        raise SelattnError(f"the baseline is a model as it is, not {args.baseline}: give MODEL or NAME=MODEL")
    check_vocabularies([curve.folder for curve in (*curves, *filter(None, [baseline]))])
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
                (base,) = measure(load_model(baseline.folder), texts, context, [None], None, team, tick)
            found = [
                (curve, policy, measure(load_model(curve.folder), texts, context, choices, policy, team, tick))
                for curve, choices, policy in plan
            ]
    finally:
        team.close()
    if team.leads:
        shown = None if baseline is None or base is None else {"name": baseline.name, **base.to_json()}
        data = {
            "context": context,
            "texts": {name: sizes_of(batches) for name, batches in texts.items()},
            "skip": args.skip,
            "baseline": shown,
            "curves": collect(context, found, base),
        }
        if args.record:
            from selattn.records import write_record

            write_record(args.record, data, seed=args.seed)
            console.print(f"recorded in {args.record}", soft_wrap=True)
        draw_curves(data, args, console)
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
    context: int, found: Sequence[tuple[Curve, str | None, list[Point]]], base: Point | None
) -> list[dict[str, Any]]:
    """The curves for the record. Those of one name are one curve: local models of several windows are its points."""
    from selattn.evaluate.curve import size_at

    curves = []
    for name in dict.fromkeys(curve.name for curve, _, _ in found):
        parts = [part for part in found if part[0].name == name]
        points = [point for _, _, points in parts for point in points]
        reached = {text: size_at(points, text, loss) for text, loss in (base.losses if base else {}).items()}
        curves.append(
            {
                "name": name,
                "of": [
                    {
                        "model": curve.model,
                        "policy": policy,
                        "search": None if curve.search is None else str(curve.search),
                    }
                    for curve, policy, _ in parts
                ],
                "points": [point.to_json() for point in points],
                "at_the_baselines_loss": {text: at and at.to_json(context) for text, at in reached.items()},
            }
        )
    return curves


def sizes_of(batches: Sequence[Batch]) -> dict[str, int]:
    """How much text that is."""
    return {"rows": sum(len(batch.input_ids) for batch in batches), "tokens": sum(batch.tokens for batch in batches)}


def draw_curves(data: dict[str, Any], args: argparse.Namespace, console: Console) -> None:
    """The figure, if one is wanted: --figure, or beside the record."""
    from selattn.report.tradeoff import draw_tradeoff

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
