"""`selattn seeds`: records of one measurement over several seeds in one: means, and the number of each seed.

A seed is the one that the models of a record were trained with.
Takes records of `selattn eval --curve`, and draws their figure with bands, or records of `selattn prune`.
"""

from __future__ import annotations

import argparse
from typing import Any

from selattn.cli import _options
from selattn.errors import SelattnError


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `selattn seeds` and its options to the command line."""
    parser = subparsers.add_parser("seeds", help="several seeds of a measurement in one record", description=__doc__)
    parser.add_argument("records", nargs="+", type=_options.path, metavar="RECORD", help="one for each seed")
    parser.add_argument("--record", type=_options.path, metavar="FILE", help="write the record there (JSON)")
    parser.add_argument("--figure", type=_options.path, metavar="FILE", help="of curves (default: beside the record)")


def run(args: argparse.Namespace) -> int:
    """Merge, record, draw, show."""
    from rich.console import Console

    from selattn.cli._tables import show_curves, show_files, show_searches
    from selattn.report.seeds import MergedTradeoff, merge_seeds
    from selattn.report.tradeoff import draw_tradeoff, figure_beside
    from selattn.utils.records import check_output, write_record

    check_output(args.record)
    if args.record is not None and args.record.resolve() in [path.resolve() for path in args.records]:
        raise SelattnError(f"the record would take the place of {args.record}, which it is made from: rename it")
    found, figure = merge_seeds(args.records), None
    if isinstance(found, MergedTradeoff):
        figure = figure_beside(args.record, args.figure)
    elif args.figure:
        raise SelattnError("--figure belongs to records of curves")
    seeds, console = [source.training_seed for source in found.records], Console(highlight=False, markup=False)
    if args.record:
        write_record(args.record, found, seed=seeds)
    if isinstance(found, MergedTradeoff):
        if figure is not None:
            draw_tradeoff(figure, found)
        show_files(console, recorded=args.record, drawn=figure)
        show_curves(found, console)
    else:
        show_files(console, recorded=args.record)
        show_searches(found, console)
    console.print("trained with the seeds", ", ".join("(unknown)" if seed is None else str(seed) for seed in seeds))
    return 0
