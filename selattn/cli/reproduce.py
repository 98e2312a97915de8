"""`selattn reproduce`: the paper's tables and figures by name, from training to a record, a table and a figure.

It can be stopped at any time: the same command goes on where it was. Trained models are shared through a store.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selattn.cli import _options
from selattn.errors import SelattnError

if TYPE_CHECKING:
    from rich.console import Console

SCALES = ("smoke", "laptop", "paper")
PAGE = Path("docs/results.md")
_RUNNING = ("all", "scale", "source", "text", "seeds", "positions", "set", "store", "adopt", "extend", "data_dir")


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Register the command with its options."""
    parser = subparsers.add_parser("reproduce", help="the paper's tables and figures by name", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments, see --list")
    parser.add_argument("--all", action="store_true", help="every experiment that can be run at this scale")
    parser.add_argument("--scale", choices=SCALES, help="smoke (default), laptop or paper")
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
    parser.add_argument("--store", type=_options.path, metavar="FOLDER", help="of models (default: runs/reproduce)")
    parser.add_argument(
        "--adopt",
        type=_options.path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="take its finished runs first",
    )
    parser.add_argument("--out", type=_options.path, metavar="FOLDER", help="of records (default: results/reproduce)")
    parser.add_argument(
        "--extend", action="store_true", help="take losses of trainings from the records in --out, train the others"
    )
    parser.add_argument("--data-dir", type=_options.path, metavar="FOLDER", help="questions of the downstream tasks")
    parser.add_argument("--list", action="store_true", help="list the experiments, their cost, and what is recorded")
    report = f"work out the claims of all records anew, and write {PAGE}"
    parser.add_argument("--report", type=_options.path, nargs="?", const=PAGE, metavar="FILE", help=report)
    parser.add_argument("--again", type=_options.path, metavar="RECORD", help="run a record again, and compare")


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


def run(args: argparse.Namespace) -> int:
    """List, or carry out."""
    from rich.console import Console

    from selattn.cli._reproduction import list_experiments, run_again
    from selattn.reproduction.results import write_results
    from selattn.reproduction.run import OUT

    console = Console(highlight=False)
    if args.list:
        _options.refuse(args, [*_RUNNING, "report", "again"], "--list only lists")
        list_experiments(console, args.names, args.out or OUT)
        return 0
    if args.report is not None:
        _options.refuse(args, [*_RUNNING, "names", "again"], "--report only writes claims and the page")
        console.print(f"written: {write_results(args.out or OUT, args.report)}", soft_wrap=True)
        return 0
    if args.again is not None:
        _options.refuse(
            args,
            [each for each in (*_RUNNING, "names", "out") if each not in ("store", "data_dir")],
            "--again takes everything from the record",
        )
        return run_again(args.again, args.store, args.data_dir, console)
    if bool(args.names) == args.all:
        raise SelattnError("give names of experiments, or --all; see 'selattn reproduce --list'")
    return carry_out(args, console)


def carry_out(args: argparse.Namespace, console: "Console") -> int:
    """Train, measure, and show the tables."""
    from selattn.cli._reproduction import show
    from selattn.cli.main import INTERRUPTED
    from selattn.reproduction.progress import Overview, ShownOverview
    from selattn.reproduction.run import OUT, STORE, reproduce
    from selattn.utils.distributed import leads

    _options.fill(args, {"scale": "smoke", "store": STORE, "out": OUT})
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
