"""`selattn seeds`: records of one measurement over several seeds in one: means, and the number of each seed.

A seed is the one that the models of a record were trained with.
Takes records of `selattn eval --curve`, and draws their figure with bands, or records of `selattn prune`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selattn.cli import _options
from selattn.errors import SelattnError

if TYPE_CHECKING:
    from rich.console import Console


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Register the command."""
    parser = subparsers.add_parser("seeds", help="several seeds of a measurement in one record", description=__doc__)
    parser.add_argument("records", nargs="+", type=_options.path, metavar="RECORD", help="one for each seed")
    parser.add_argument("--record", type=_options.path, metavar="FILE", help="write the record there (JSON)")
    parser.add_argument("--figure", type=_options.path, metavar="FILE", help="of curves (default: beside the record)")


def run(args: argparse.Namespace) -> int:
    """Read, merge, record, show."""
    from rich.console import Console

    from selattn.cli._curve import draw_curves, figure_of, show_curves, show_files
    from selattn.report.seeds import merge_curves, merge_searches
    from selattn.utils.records import check_output, read_record, write_record

    check_output(args.record)
    found = {str(path): read_record(path) for path in args.records}
    check_files(args.records, args.record, found)
    kinds = {kind for record in found.values() for kind in ("curves", "budgets") if kind in record}
    if len(kinds) != 1 or any(kinds.isdisjoint(record) for record in found.values()):
        raise SelattnError("these are not all records of 'selattn eval --curve', nor all of 'selattn prune'")
    curves = kinds == {"curves"}
    if args.figure and not curves:
        raise SelattnError("--figure belongs to records of curves")
    if curves:
        figure_of(args)  # refuses one that cannot be drawn, before the record is written
    data = merge_curves(found) if curves else merge_searches(found)
    seeds = [source["training_seed"] for source in data["records"]]
    console = Console(highlight=False, markup=False)
    if args.record:
        write_record(args.record, data, seed=seeds)
    show_files(args.record, draw_curves(data, args) if curves else None, console)
    if curves:
        show_curves(data, console)
    else:
        show_searches(data, console)
    console.print("trained with the seeds", ", ".join("(unknown)" if seed is None else str(seed) for seed in seeds))
    return 0


def check_files(paths: Sequence[Path], record: Path | None, found: Mapping[str, dict[str, Any]]) -> None:
    """Each file must be another seed: one that counts twice would narrow the spread without a word."""
    seen: dict[Path, Path] = {}
    for path in paths:
        if "records" in found[str(path)]:
            raise SelattnError(f"{path} is of several seeds already: give the records that it was made from")
        first = seen.setdefault(path.resolve(), path)
        if first is not path:
            raise SelattnError(f"{first} and {path} are the same file: give each record once")
    if record is not None and record.resolve() in seen:
        raise SelattnError(f"the record would take the place of {record}, which it is made from: give it another name")


def show_searches(data: dict[str, Any], console: Console) -> None:
    """A line for each seed, and the mean."""
    from rich.table import Table

    paths = [Path(row["record"]) for row in data["searches"]]
    names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    table = Table("", "budgets")
    table.columns[0].overflow = "fold"
    for heading in ("memory factor", *data["report"]):
        table.add_column(heading, justify="right")
    for name, row in zip(names, data["searches"], strict=True):
        bound = "≥ " if row["at_floor"] and row["search_limit"] is not None else ""
        losses = [f"{loss:.4f}" for loss in row["report"].values()]
        table.add_row(name, " ".join(map(str, row["budgets"])), f"{bound}{row['memory_factor']:.2f}", *losses)
    table.add_section()
    table.add_row("mean", "", f"{data['memory_factor']:.2f}", *(f"{loss:.4f}" for loss in data["report"].values()))
    console.print(table)
