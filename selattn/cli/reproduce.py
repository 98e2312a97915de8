"""`selattn reproduce`: the paper's tables and figures by name, from training to a record, a table and a figure.

It can be stopped at any time: the same command goes on where it was. Trained models are shared through a store.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selattn.cli import _options
from selattn.errors import SelattnError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from selattn.reproduction import Outcome

SCALES = ("smoke", "laptop", "paper")


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Register the command with its options."""
    parser = subparsers.add_parser("reproduce", help="the paper's tables and figures by name", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments, see --list")
    parser.add_argument("--all", action="store_true", help="every experiment that can be run at this scale")
    parser.add_argument("--scale", choices=SCALES, help="smoke (default), laptop or paper")
    parser.add_argument(
        "--source", type=_options.name, metavar="TEXT", help="the text (laptop: enwik8-clean; paper: c4)"
    )
    parser.add_argument("--seeds", type=seeds, metavar="S,S", help="of the trainings (default: those of the scale)")
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
    parser.add_argument("--data-dir", type=_options.path, metavar="FOLDER", help="questions of the downstream tasks")
    parser.add_argument("--list", action="store_true", help="list the experiments, their cost, and what is recorded")


def seeds(text: str) -> list[int]:
    """Reads seeds with commas between them; for argparse."""
    found = [_options.seed(part) for part in text.split(",")]
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"must be different seeds, not {text!r}")
    return found


def run(args: argparse.Namespace) -> int:
    """List, or carry out."""
    from rich.console import Console

    from selattn.reproduction.run import OUT

    console = Console(highlight=False)
    if args.list:
        _options.refuse(
            args, ["all", "scale", "source", "seeds", "set", "store", "adopt", "data_dir"], "--list only lists"
        )
        list_experiments(console, args.names, args.out or OUT)
        return 0
    if bool(args.names) == args.all:
        raise SelattnError("give names of experiments, or --all; see 'selattn reproduce --list'")
    return carry_out(args, console)


def carry_out(args: argparse.Namespace, console: "Console") -> int:
    """Train, measure, and show the tables."""
    from selattn.cli.main import INTERRUPTED
    from selattn.reproduction.progress import Overview, ShownOverview
    from selattn.reproduction.run import OUT, STORE, reproduce
    from selattn.utils.distributed import leads

    _options.fill(args, {"scale": "smoke", "store": STORE, "out": OUT})
    found = reproduce(
        ["all"] if args.all else args.names,
        args.scale,
        source=args.source,
        seeds=args.seeds,
        store=args.store,
        adopt=args.adopt,
        out=args.out,
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


def show(found: "Sequence[Outcome]", console: "Console") -> None:
    """Every table, what it says of the claims, and where it is."""
    from rich.markup import escape

    from selattn.reproduction.tables import table_of
    from selattn.reproduction.verdicts import verdict

    for outcome in found:
        record = outcome.record
        if record.cells:
            console.print(table_of(record).markdown(), markup=False, soft_wrap=True)
        for claim in record.claims:
            console.print(f"[bold]{verdict(claim, record.scale)}[/]: {escape(claim.text)}", soft_wrap=True)
        console.print(f"[dim]{' '.join(map(str, outcome.files))}[/]\n", soft_wrap=True)


def list_experiments(console: "Console", names: "Sequence[str]", out: Path) -> None:
    """A table of them: what each is, how long it takes on a laptop, and at which scales there is a record."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from selattn.reproduction.cost import in_words, seconds
    from selattn.reproduction.experiments import EXPERIMENTS, find_experiment
    from selattn.reproduction.scales import find_scale

    table = Table("name", "in the paper", "what", "scales", "laptop", "recorded", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.columns[0].no_wrap = True
    for each in [find_experiment(name) for name in names] or EXPERIMENTS.values():
        laptop = find_scale("laptop")
        time = seconds(each.needs(laptop, laptop.seeds).values()) if "laptop" in each.scales else None
        there = [scale for scale in each.scales if (out / scale / f"{each.name}.json").is_file()]
        scales = "all" if len(each.scales) == len(SCALES) else ", ".join(each.scales)
        table.add_row(
            each.name, each.paper, each.sentence, scales, "" if time is None else in_words(time), ", ".join(there)
        )
    console.print(table)
    console.print("[dim]laptop: about how long its trainings take on 2 cores, with nothing in the store[/]")
