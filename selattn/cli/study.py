"""`selattn study`: several runs that answer one question, and one record of them in results/.

It can be stopped at any time: the same command goes on where it was.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Register the command."""
    parser = subparsers.add_parser("study", help="carry out and record a comparison", description=__doc__)
    parser.add_argument("name", nargs="?", metavar="STUDY", help="name of the study; without it they are listed")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a setting of every run; `--set` is optional"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/studies"), metavar="FOLDER", help="of the runs")
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="FOLDER", help="of the record")


def run(args: argparse.Namespace) -> int:
    """List the studies, or carry one out."""
    from rich.console import Console

    from selattn.cli.main import INTERRUPTED
    from selattn.train.display import make_display
    from selattn.train.study import carry_out, find_study

    console = Console(highlight=False)
    if args.name is None:
        list_studies(console)
        return 0
    study = find_study(args.name)
    path = carry_out(args.name, study, args.set, args.runs, args.out, make_display)
    if path is None:
        console.print("stopped with a checkpoint; the same command goes on")
        return INTERRUPTED
    show(path, console)
    return 0


def list_studies(console: "Console") -> None:
    """A table of them."""
    from rich.table import Table

    from selattn.train.study import STUDIES

    table = Table("study", "question", "runs")
    for name, study in STUDIES.items():
        table.add_row(name, study.question, f"{len(study.runs)} × {len(study.seeds)} seeds")
    console.print(table)


def show(path: Path, console: "Console") -> None:
    """The summary of a record."""
    import json

    from rich.table import Table

    summary = json.loads(path.read_text())["summary"]
    measures = [name for name in next(iter(summary.values())) if not name.endswith("_kept")]
    table = Table("run", *(name.replace("_", " ") for name in measures))
    for name, values in summary.items():
        cells = []
        for measure in measures:
            spread = values[measure]
            shown = "{:.1%}" if measure.endswith("accuracy") else "{:.4f}"
            cells.append(f"{shown} ({shown} to {shown})".format(spread["mean"], spread["min"], spread["max"]))
        table.add_row(name, *cells)
    console.print(table, f"[dim]mean (smallest to largest over the seeds); recorded in {path}[/]")
