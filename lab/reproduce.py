"""`python -m lab`: the paper's tables and figures by name, from training to a record, a table and a figure.

It can be stopped at any time: the same command goes on where it was. Trained models are shared through a store.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from lab.engine.progress import Overview, ShownOverview
from lab.engine.run import OUT, STORE, reproduce
from lab.engine.show import list_experiments, run_again, show
from lab.results import write_results
from selattn.cli import _options
from selattn.cli._options import Parser
from selattn.cli.main import INTERRUPTED
from selattn.errors import SelattnError
from selattn.utils.distributed import leads

SCALES = ("smoke", "laptop", "paper")
PAGE = Path("docs/results.md")


def main(argv: Sequence[str]) -> int:
    """Carry out experiments, or list, compare or report what is recorded."""
    command = {"list": _list, "again": _again, "results": _results}.get(argv[0])
    return command(argv[1:]) if command is not None else carry_out(_parser().parse_args(argv))


def _parser() -> Parser:
    parser = Parser(prog="python -m lab", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments, see `python -m lab list`")
    parser.add_argument("--all", action="store_true", help="every experiment that can be run at this scale")
    parser.add_argument("--scale", choices=SCALES, default="smoke", help="smoke (default), laptop or paper")
    parser.add_argument(
        "--source", type=_options.name, metavar="TEXT", help="the text (laptop: enwik8-clean; paper: c4)"
    )
    parser.add_argument(
        "--text", type=named, action="append", default=[], metavar="NAME=TEXT", help="a text for wikitext or lm1b"
    )
    parser.add_argument("--seeds", type=seeds, metavar="S,S", help="of the trainings (default: those of the scale)")
    parser.add_argument(
        "--positions", type=positions, metavar="P,P", help="rotary, learned (laptop's tables of losses: both)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a setting of every training; see 'train'"
    )
    parser.add_argument(
        "--store", type=_options.path, default=STORE, metavar="FOLDER", help="of models (default: runs/reproduce)"
    )
    parser.add_argument(
        "--adopt",
        type=_options.path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="take its finished runs first",
    )
    parser.add_argument(
        "--out", type=_options.path, default=OUT, metavar="FOLDER", help="of records (default: results/reproduce)"
    )
    parser.add_argument(
        "--extend", action="store_true", help="take losses of trainings from the records in --out, train the others"
    )
    parser.add_argument("--data-dir", type=_options.path, metavar="FOLDER", help="questions of the downstream tasks")
    return parser


def _list(argv: Sequence[str]) -> int:
    parser = Parser(prog="python -m lab list", description="List the experiments, and what is recorded.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones (default: all)")
    parser.add_argument("--out", type=_options.path, default=OUT, metavar="FOLDER", help=f"of records (default: {OUT})")
    args = parser.parse_args(argv)
    list_experiments(Console(highlight=False), args.names, args.out)
    return 0


def _again(argv: Sequence[str]) -> int:
    parser = Parser(prog="python -m lab again", description="Run a record again, and compare its numbers.")
    parser.add_argument("record", type=_options.path, metavar="RECORD", help="a record, or the name of an experiment")
    parser.add_argument("--store", type=_options.path, metavar="FOLDER", help="of models (default: none is taken)")
    parser.add_argument("--data-dir", type=_options.path, metavar="FOLDER", help="questions of the downstream tasks")
    args = parser.parse_args(argv)
    return run_again(args.record, args.store, args.data_dir, Console(highlight=False))


def _results(argv: Sequence[str]) -> int:
    about = f"Work out the claims of all records again, and write {PAGE}."
    parser = Parser(prog="python -m lab results", description=about)
    parser.add_argument("--out", type=_options.path, default=OUT, metavar="FOLDER", help=f"of records (default: {OUT})")
    parser.add_argument("--page", type=_options.path, default=PAGE, metavar="FILE", help=f"default: {PAGE}")
    args = parser.parse_args(argv)
    Console(highlight=False).print(f"written: {write_results(args.out, args.page)}", soft_wrap=True)
    return 0


def seeds(text: str) -> list[int]:
    """Reads seeds with commas between them; for argparse."""
    found = [_options.seed(part) for part in text.split(",")]
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"must be different seeds, not {text!r}")
    return found


def positions(text: str) -> list[str]:
    """Reads kinds of positions with commas between them; for argparse."""
    found = text.split(",")
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"must be different positions, not {text!r}")
    return found


def named(text: str) -> tuple[str, str]:
    """Reads NAME=TEXT; for argparse."""
    name, equals, source = text.partition("=")
    if not (name and equals and source):
        raise argparse.ArgumentTypeError(f"must be NAME=TEXT, such as wikitext=FILE, not {text!r}")
    return name, source


def carry_out(args: argparse.Namespace) -> int:
    """Train, measure, and show the tables."""
    if bool(args.names) == args.all:
        raise SelattnError("give names of experiments, or --all; see 'python -m lab list'")
    console = Console(highlight=False)
    found = reproduce(
        ["all"] if args.all else args.names,
        args.scale,
        source=args.source,
        texts=dict(args.text),
        seeds=args.seeds,
        positions=args.positions,
        store=args.store,
        adopt=args.adopt,
        out=args.out,
        extend=args.extend,
        settings=args.set,
        questions=args.data_dir,
        overview=ShownOverview() if leads() else Overview(),
    )
    if found is None:
        console.print("stopped with a checkpoint; the same command goes on")
        return INTERRUPTED
    if leads():
        show(found, console)
    return 0
