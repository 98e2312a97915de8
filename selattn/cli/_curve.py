"""`selattn eval --curve`: one figure and one record of the trade-off for several models and policies."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from selattn.cli._text import text_of
from selattn.errors import SelattnError

if TYPE_CHECKING:
    from rich.console import Console

    from selattn.cache import Budgets
    from selattn.evaluate.batches import Batch
    from selattn.evaluate.curve import Curve, Point


def run_curve(args: argparse.Namespace, console: Console) -> int:
    """Measure every curve on the same rows, read off where it reaches the baseline, draw and record."""
    from selattn.evaluate.curve import Curve, measure
    from selattn.evaluate.subjects import load_model, tokenizer_of
    from selattn.evaluate.team import Team
    from selattn.models.zoo import find_model

    if not args.data or args.tasks or args.speed:
        raise SelattnError("--curve measures the loss on --data, and nothing else")
    if args.figure and args.figure.suffix not in (".png", ".svg", ".pdf"):
        raise SelattnError(f"--figure must end with .png, .svg or .pdf, not {args.figure}")
    curves = [Curve.parse(text) for text in args.models]
    baseline = None if args.baseline is None else find_model(args.baseline)
    folders = [curve.folder for curve in curves] + ([baseline] if baseline else [])
    prints = {tokenizer_of(folder).fingerprint for folder in folders}
    if len(prints) > 1:
        raise SelattnError("these models have different vocabularies: their losses cannot be compared")
    team = Team()
    try:
        context = args.context or load_model(curves[0].folder).config.max_position_embeddings
        texts = make_texts(args, folders[0], context)
        base = None
        if baseline is not None:
            (base,) = measure(load_model(baseline), texts, context, [None], None, team)
        found = []
        for curve in curves:
            choices, policy = points_of(curve, args.sizes, context)
            found.append((curve, measure(load_model(curve.folder), texts, context, choices, policy, team)))
    finally:
        team.close()
    if team.leads:
        data = collect(args, context, texts, found, base)
        write(args, data, console)
        show(data, console)
    return 0


def make_texts(args: argparse.Namespace, folder: Any, context: int) -> dict[str, list[Batch]]:
    """The rows that all curves are measured on."""
    from selattn.evaluate import make_batches
    from selattn.evaluate.subjects import tokenizer_of

    texts = {}
    for source in args.data:
        for long in (False, True) if args.long else (False,):
            text = text_of(args, source, long)
            rows = text.rows(tokenizer_of(folder), context, progress=True).take(args.rows, args.skip)
            texts[f"{text.name}, long" if long else text.name] = make_batches(rows, args.batch)
    return texts


def points_of(curve: Curve, sizes: Sequence[int], context: int) -> tuple[list[Budgets | None], str | None]:
    """The budgets of a curve's points, and the policy."""
    import json

    from selattn.cache import Budgets
    from selattn.evaluate.curve import nearest
    from selattn.prune.path import SETTINGS, read_path

    if curve.search is not None:
        path = read_path(curve.search)
        if not path:
            raise SelattnError(f"{curve.search} is not the folder of a search, or nothing has been searched in it")
        settings = json.loads((curve.search / SETTINGS).read_text())
        if settings["context"] != context:
            raise SelattnError(f"{curve.search} was searched at a context of {settings['context']}, not {context}")
        wanted = nearest([step.budgets for step in path], [size for size in sizes if size <= context])
        return [Budgets(budgets) for budgets in wanted], settings["policy"]
    if curve.sizes:
        return [Budgets(size) for size in sorted(sizes, reverse=True) if size <= context], curve.policy
    return [None], None


def collect(
    args: argparse.Namespace,
    context: int,
    texts: dict[str, list[Batch]],
    found: list[tuple[Curve, list[Point]]],
    base: Point | None,
) -> dict[str, Any]:
    """The record."""
    from selattn.evaluate.curve import size_at

    curves = []
    for curve, points in found:
        equal = {}
        for text in texts if base is not None else ():
            assert base is not None
            size = size_at(points, text, base.losses[text])
            equal[text] = None if size is None else {"kv_size": size, "memory_factor": context / size}
        curves.append(
            {
                "name": curve.name,
                "model": str(curve.folder),
                "policy": curve.policy,
                "search": None if curve.search is None else str(curve.search),
                "points": [point.to_json() for point in points],
                "at_the_baselines_loss": equal,
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


def show(data: dict[str, Any], console: Console) -> None:
    """Where each curve reaches the baseline's loss."""
    from rich.table import Table

    for text in data["texts"]:
        table = Table("curve", title=text, title_justify="left")
        for heading in ("largest: loss", "smallest: loss", "memory factor at the baseline's loss"):
            table.add_column(heading, justify="right")
        for curve in data["curves"]:
            points = sorted(curve["points"], key=lambda point: -point["kv_size"])
            ends = [f"{point['kv_size']:g}: {point['loss'][text]:.4f}" for point in (points[0], points[-1])]
            equal = curve["at_the_baselines_loss"].get(text)
            table.add_row(curve["name"], *ends, "-" if equal is None else f"{equal['memory_factor']:.2f}")
        console.print(table)
        if data["baseline"] is not None:
            console.print(f"baseline {data['baseline']['name']}: {data['baseline']['loss'][text]:.4f}", soft_wrap=True)
