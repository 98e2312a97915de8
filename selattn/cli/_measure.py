"""What `selattn eval` measures, with and without --curve: options in, tables out."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from selattn.cli._text import texts_of

if TYPE_CHECKING:
    from rich.console import Console

    from selattn.utils.distributed import Team


def run_side_by_side(args: argparse.Namespace, console: Console, team: Team) -> None:
    """Measure what has not been measured before, record, show."""
    from selattn.cli._tables import show_comparison, show_files
    from selattn.evaluation import evaluate
    from selattn.utils.records import provenance

    how = {name: getattr(args, name) for name in ("tasks", "data_dir", "speed", "policy", "limit")}
    found = evaluate(args.models, texts_of(args), **how, **measuring(args, console, team))
    if team.leads:
        if args.html is not None:
            from selattn.views.html.evaluation import comparison_report

            comparison_report(found, provenance(args.seed)).save(args.html)
        show_files(console, recorded=args.record, reported=args.html)
        show_comparison(found, console)


def run_curve(args: argparse.Namespace, console: Console, team: Team) -> None:
    """Measure what has not been measured before, record, draw, show."""
    from selattn.cli._tables import show_curves, show_files
    from selattn.evaluation import measure_tradeoff
    from selattn.utils.records import provenance
    from selattn.views.tradeoff import draw_tradeoff, figure_beside

    figure = figure_beside(args.record, args.figure)  # before anything is measured
    how = {"baseline": args.baseline, "sizes": args.sizes or (), "extend": args.extend}
    found = measure_tradeoff(args.models, texts_of(args), **how, **measuring(args, console, team))
    if team.leads:
        if figure is not None:
            draw_tradeoff(figure, found)
        if args.html is not None:
            from selattn.views.html.evaluation import tradeoff_report

            tradeoff_report(found, provenance(args.seed)).save(args.html)
        show_files(console, recorded=args.record, drawn=figure, reported=args.html)
        show_curves(found, console)


def measuring(args: argparse.Namespace, console: Console, team: Team) -> dict[str, Any]:
    """What both have in common: which rows, where the record goes, and what is shown meanwhile."""
    from selattn.evaluation.parts import KNOWN
    from selattn.utils.progress import ProgressLines

    lines = ProgressLines(shown=team.leads)

    def progress(what: str, done: int, total: int | None) -> None:
        if what == KNOWN:
            console.print(f"{done} of {total} {KNOWN}")
        elif total is None:  # lm-eval has a bar of its own
            print(what, file=sys.stderr)
        else:
            lines(what, done, total)

    common = {name: getattr(args, name) for name in ("rows", "skip", "context", "batch", "seed", "record")}
    return {**common, "progress": progress, "team": team}
