"""`selattn study`: several runs that answer one question, and one record of them in results/.

It can be stopped at any time: the same command goes on where it was.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selattn.cli import _options

if TYPE_CHECKING:
    from rich.console import Console

    from selattn.training.study import Spread, StudyRecord


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add `selattn study` and its options to the command line."""
    parser = subparsers.add_parser("study", help="carry out and record a comparison", description=__doc__)
    parser.add_argument("name", nargs="?", metavar="STUDY", help="name of the study; without it they are listed")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a setting of every run; `--set` is optional"
    )
    parser.add_argument("--runs", type=_options.path, metavar="FOLDER", help="of the runs (default: runs/studies)")
    parser.add_argument("--out", type=_options.path, metavar="FOLDER", help="of the record (default: results)")


def run(args: argparse.Namespace) -> int:
    """List the studies, or carry one out."""
    from rich.console import Console

    from selattn.cli.main import INTERRUPTED
    from selattn.training.display import make_display
    from selattn.training.study import find_study, run_study

    console = Console(highlight=False)
    if args.name is None:
        _options.refuse(args, ["set", "runs", "out"], "without the name of a study they are only listed")
        list_studies(console)
        return 0
    find_study(args.name)  # before its name becomes that of a file
    _options.fill(args, {"runs": Path("runs/studies"), "out": Path("results")})
    path = args.out / f"{args.name}.json"
    found = run_study(args.name, args.set, args.runs, path, display=make_display)
    if found is None:
        console.print("stopped with a checkpoint; the same command goes on")
        return INTERRUPTED
    show(found, path, console)
    return 0


def list_studies(console: "Console") -> None:
    """A table of them."""
    from rich.table import Table

    from selattn.training.study import STUDIES

    table = Table("study", "question", "runs")
    for name, study in STUDIES.items():
        table.add_row(name, study.question, f"{len(study.runs)} × {len(study.seeds)} seeds")
    console.print(table)


def show(found: "StudyRecord", path: Path, console: "Console") -> None:
    """The summary of a record: how the runs stand at the end, and at every step that all of them have."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    def table(title: str) -> Table:
        return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))

    summary = found.summary
    measures = [name for name in next(iter(summary.values())) if name.endswith(("_loss", "_accuracy"))]
    last = table("At the end")
    last.add_column("run", no_wrap=True)
    for measure in measures:
        last.add_column(measure.replace("_", " "), justify="right")
    for name, values in summary.items():
        last.add_row(name, *(_spread(measure, values[measure]) for measure in measures))
    console.print(last)

    way = {name: values["by_step"] for name, values in summary.items()}
    shared = [step for step in next(iter(way.values())) if all(step in of for of in way.values())]
    if shared:
        names = [name.replace("_", " ") for name in next(iter(way.values()))[shared[0]]]
        course = table(f"On the way: {', '.join(names)}")
        course.add_column("step", justify="right")
        for name in way:
            course.add_column(name, justify="right")
        for step in shared:
            cells = ("\n".join(_spread(measure, of[step][measure]) for measure in of[step]) for of in way.values())
            course.add_row(str(step), *cells)
        console.print(course)
    console.print(f"[dim]the mean over the seeds (smallest–largest); recorded in {path}[/]", soft_wrap=True)


def _spread(measure: str, values: "Spread") -> str:
    """The mean, and the range if there is one."""
    factor, digits, unit = (100, 1, "%") if measure.endswith("accuracy") else (1, 3, "")
    mean, low, high = (f"{x * factor:.{digits}f}" for x in (values["mean"], values["min"], values["max"]))
    return f"{mean}{unit}" + ("" if low == high else f" ({low}–{high})")
