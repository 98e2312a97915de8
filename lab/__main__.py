"""`python -m lab NAME ...`: the paper's tables and figures by name, from training to a record, a table and a figure.

It can be stopped at any time: the same command resumes. Trained models are shared through a store. Other commands:

demo      the whole story in minutes, with a report
list      the experiments, what they cost, and what is recorded
again     run a record again, and compare
results   write docs/results.md from the records
mixture   build the broad English text
queue     work through a list of tables, resuming wherever it stood
show      a few samples of a synthetic task
train     one of the lab's runs; options as in `selattn train`
zoo       train and export the models of the zoo

`python -m lab NAME --help` has the options of experiments.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.markup import escape

from selattn.cli import _options
from selattn.cli._options import Parser
from selattn.cli.main import INTERRUPTED, guarded
from selattn.errors import SelattnError
from selattn.utils.distributed import leads
from selattn.utils.progress import Shown

T = TypeVar("T")

COMMANDS = {
    "demo": "lab.demo",
    "mixture": "lab.mixture",
    "queue": "lab.queue",
    "show": "lab.tasks",
    "train": "lab.runs",
    "zoo": "lab.zoo",
}
SCALES = ("smoke", "laptop", "paper")
PAGE = Path("docs/results.md")
DIFFERS = 1  # the exit code if a record that is run again gives other numbers


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    return guarded(dispatch, sys.argv[1:] if argv is None else argv)


def dispatch(argv: Sequence[str]) -> int:
    """Run the command that the first word names, or else experiments."""
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__, end="")
        return 0
    if argv[0] in COMMANDS:
        code: int = import_module(COMMANDS[argv[0]]).main(argv[1:])
        return code
    command = {"list": _list, "again": _again, "results": _results}.get(argv[0])
    return command(argv[1:]) if command is not None else carry_out(experiments_parser().parse_args(argv))


def experiments_parser() -> Parser:
    """The options of experiments."""
    from lab.engine.run import OUT, STORE

    about = "Carry out experiments: train what is missing, measure, and write records, tables and figures."
    parser = Parser(prog="python -m lab", description=about)
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments, see `python -m lab list`")
    parser.add_argument("--all", action="store_true", help="every experiment that can be run at this scale")
    parser.add_argument("--scale", choices=SCALES, default="smoke", help="smoke (default), laptop or paper")
    parser.add_argument(
        "--source", type=_options.name, metavar="TEXT", help="the text (laptop: enwik8-clean; paper: c4)"
    )
    parser.add_argument(
        "--text", type=_named, action="append", default=[], metavar="NAME=TEXT", help="a text for wikitext or lm1b"
    )
    parser.add_argument(
        "--seeds", type=different("seeds", _options.seed), metavar="S,S", help="of trainings (default: the scale's)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a setting of every training; see 'train'"
    )
    parser.add_argument(
        "--store", type=_options.path, default=STORE, metavar="FOLDER", help=f"of models (default: {STORE})"
    )
    parser.add_argument("--out", type=_options.path, default=OUT, metavar="FOLDER", help=f"of records (default: {OUT})")
    parser.add_argument("--data-dir", type=_options.path, metavar="FOLDER", help="questions of the downstream tasks")
    return parser


def different(what: str, read: Callable[[str], T]) -> Callable[[str], list[T]]:
    """A reader of values with commas between them, for argparse."""

    def split(text: str) -> list[T]:
        values = [read(part) for part in text.split(",")]
        if len(set(values)) < len(values):
            raise argparse.ArgumentTypeError(f"must be different {what}, not {text!r}")
        return values

    return split


def _named(text: str) -> tuple[str, str]:
    name, equals, source = text.partition("=")
    if not (name and equals and source):
        raise argparse.ArgumentTypeError(f"must be NAME=TEXT, such as wikitext=FILE, not {text!r}")
    return name, source


def carry_out(args: argparse.Namespace, **more: Any) -> int:
    """Train, measure, and show the tables; `more` is given to `reproduce`, too."""
    from lab.engine.progress import Overview
    from lab.engine.records import verdict
    from lab.engine.run import reproduce
    from lab.engine.tables import table_of

    if bool(args.names) == args.all:
        raise SelattnError("give names of experiments, or --all; see 'python -m lab list'")
    twice = next((name for name in args.names if args.names.count(name) > 1), None)
    if twice is not None:
        raise SelattnError(f"{twice} is named twice: give each experiment once")
    console = Console(highlight=False)
    given = {"store": args.store, "overview": Overview(Shown(keep=True) if leads() else None), **more}
    done = reproduce(
        ["all"] if args.all else args.names,
        args.scale,
        source=args.source,
        texts=dict(args.text),
        seeds=args.seeds,
        out=args.out,
        settings=args.set,
        questions=args.data_dir,
        **given,
    )
    if done is None:
        console.print("stopped with a checkpoint; the same command resumes")
        return INTERRUPTED
    for each in done if leads() else ():
        if each.record.cells:
            console.print(table_of(each.record).markdown(), markup=False, soft_wrap=True)
        for claim in each.record.claims:
            console.print(f"[bold]{verdict(claim, each.record.scale)}[/]: {escape(claim.text)}", soft_wrap=True)
        console.print(f"[dim]{' '.join(map(str, each.files))}[/]\n", soft_wrap=True)
    return 0


def _list(argv: Sequence[str]) -> int:
    """A table of experiments: what each is, how long it takes on a laptop, and at which scales there is a record."""
    from lab.engine.progress import in_words, seconds
    from lab.engine.run import OUT
    from lab.experiments import EXPERIMENTS, find_experiment
    from lab.results import earlier_records
    from lab.scales import LAPTOP
    from selattn.utils.tables import Table

    parser = Parser(prog="python -m lab list", description="List the experiments, and what is recorded.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones (default: all)")
    parser.add_argument("--out", type=_options.path, default=OUT, metavar="FOLDER", help=f"of records (default: {OUT})")
    args = parser.parse_args(argv)
    rows = []
    before = earlier_records(args.out)
    for each in [find_experiment(name) for name in args.names] or EXPERIMENTS.values():
        time = in_words(seconds(each.needs(LAPTOP, LAPTOP.seeds).values())) if LAPTOP.name in each.scales else ""
        there = [scale for scale in each.scales if (args.out / scale / f"{each.name}.json").is_file()]
        there += [Path(str(record.earlier)).name for record in before if record.experiment == each.name]
        scales = "all" if len(each.scales) == len(SCALES) else ", ".join(each.scales)
        rows.append((each.name, each.paper, each.sentence, scales, time, ", ".join(there)))
    console = Console(highlight=False)
    head = ("name", "in the paper", "what", "scales", "laptop", "recorded")
    console.print(Table(head, rows, left=range(1, len(head)), whole=[0]).rich())
    console.print("[dim]laptop: about how long its trainings take on 2 cores, with nothing in the store[/]")
    return 0


def _again(argv: Sequence[str]) -> int:
    """Run a record again, and say what differs."""
    from lab.engine.progress import Overview
    from lab.engine.run import again

    parser = Parser(prog="python -m lab again", description="Run a record again, and compare its numbers.")
    parser.add_argument("record", metavar="RECORD", help="a record's file, or the name of an experiment that has one")
    parser.add_argument(
        "--source", type=_options.name, metavar="TEXT", help="the text (default: where the record says)"
    )
    parser.add_argument("--store", type=_options.path, metavar="FOLDER", help="of models (default: none is taken)")
    parser.add_argument("--data-dir", type=_options.path, metavar="FOLDER", help="questions of the downstream tasks")
    args = parser.parse_args(argv)
    console = Console(highlight=False)
    overview = Overview(Shown(keep=True))
    done = again(args.record, source=args.source, store=args.store, questions=args.data_dir, overview=overview)
    if done is None:
        console.print("stopped; nothing was kept" if args.store is None else "stopped; the same command resumes")
        return INTERRUPTED
    for line in done.differ:
        console.print(line, soft_wrap=True, markup=False)
    console.print(f"{done.numbers - len(done.differ)} of {done.numbers} numbers are the same", soft_wrap=True)
    for line in done.around if done.differ else ():
        console.print(f"[dim]{line}[/]", soft_wrap=True)
    return DIFFERS if done.differ else 0


def _results(argv: Sequence[str]) -> int:
    from lab.engine.run import OUT
    from lab.results import write_results

    about = f"Work out the claims of all records again, and write {PAGE}."
    Parser(prog="python -m lab results", description=about).parse_args(argv)
    Console(highlight=False).print(f"written: {write_results(OUT, PAGE)}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
