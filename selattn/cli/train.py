"""`selattn train`: train a model. A run has a name, and any field of it can be set: `selattn train RUN seed=1`.

Under torchrun or accelerate the same command trains on many devices and machines.
"""

import argparse
from typing import TYPE_CHECKING, Any

from selattn.cli import _options
from selattn.errors import SelattnError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from selattn.training import Finished, RunConfig


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Register the command."""
    parser = subparsers.add_parser("train", help="train a model: a named run, any field of it set", description=__doc__)
    parser.add_argument("run", nargs="?", metavar="RUN", help="name of the run, see --list")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a setting; `--set` itself may be left out"
    )
    parser.add_argument("--out", type=_options.name, metavar="FOLDER", help="folder of the run (default: runs/RUN)")
    parser.add_argument("--resume", action="store_true", help="go on from the newest whole checkpoint")
    parser.add_argument("--overwrite", action="store_true", help="delete what the folder holds and begin anew")
    parser.add_argument("--list", action="store_true", help="list the runs, or with RUN those that contain it")
    parser.add_argument("--show", action="store_true", help="print the fields of the run, with their values")


def run(args: argparse.Namespace) -> int:
    """List, show or train."""
    from rich.console import Console

    from selattn.training.overrides import override
    from selattn.training.runs import find_run

    console = Console(highlight=False)
    if args.list:
        _options.refuse(args, ["set", "out", "resume", "overwrite", "show"], "--list only lists the runs")
        list_runs(console, args.run or "")
        return 0
    if args.run is None:
        raise SelattnError("no run given; see 'selattn train --list'")
    if args.resume and args.overwrite:
        raise SelattnError("--resume goes on and --overwrite begins anew: give one of them")
    config = override(find_run(args.run), args.set)
    if args.show:
        _options.refuse(args, ["out", "resume", "overwrite"], "--show only prints the fields")
        show(console, config)
        return 0
    return carry_out(config, args.out or f"runs/{args.run}", args.resume, args.overwrite)


def carry_out(config: "RunConfig", folder: str, resume: bool, overwrite: bool) -> int:
    """Train with a bar, and say how it ended."""
    from rich.console import Console

    from selattn.cli.main import INTERRUPTED
    from selattn.training import train
    from selattn.training.display import make_display
    from selattn.training.launch import resume_command
    from selattn.utils.distributed import leads

    finished = train(config, folder, resume=resume, overwrite=overwrite, display=make_display(config.name))
    if not leads():
        return INTERRUPTED if finished.interrupted else 0
    console = Console(highlight=False, stderr=True)
    if finished.interrupted:
        console.print(
            f"stopped at step {finished.step:,} with a checkpoint; go on with:\n  {resume_command()}", soft_wrap=True
        )
        return INTERRUPTED
    summarize(console, finished)
    return 0


def summarize(console: "Console", finished: "Finished") -> None:
    """The last evaluation and where the model is."""
    from selattn.training.display import evaluation, shares

    record = finished.record
    console.print(f"[bold]step {record['steps']:,}[/]  {evaluation(record)}", soft_wrap=True)
    kept = record["evaluation"]["validation"]["kept"]
    if kept:
        console.print(f"kept by layer  {shares(kept)}")
    console.print(f"{record['tokens']:,} tokens in {record['seconds']:,.0f} s; the model is in {finished.folder}/model")


def list_runs(console: "Console", containing: str) -> None:
    """The runs in tables, one for each group."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from selattn.training.runs import GROUPS, RUNS

    if not any(containing in name for name in RUNS):
        raise SelattnError(f"no run has {containing!r} in its name; see 'selattn train --list'")
    for group in GROUPS:
        table = Table(
            title=group.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
        )
        table.add_column("run", no_wrap=True)
        table.add_column("attention")
        for name in ("size", "context", "batch", "steps"):
            table.add_column(name, justify="right", no_wrap=True)
        for name, make in group.runs.items():
            if containing in name:
                config = make()
                model = config.model
                table.add_row(
                    name,
                    attention(model["attention"]) + (", memory loss" if model.get("memory_epsilon") else ""),
                    f"{model['num_hidden_layers']}×{model['hidden_size']}",
                    f"{config.data.context:,}",
                    f"{config.batch.size:,}",
                    f"{config.schedule.steps:,}",
                )
        if table.row_count:
            console.print(table)


def attention(kinds: "Sequence[str]") -> str:
    """The kinds of the layers, repeated ones counted: `3 local:32, standard`."""
    from itertools import groupby

    groups = [(kind, len(list(same))) for kind, same in groupby(kinds)]
    return ", ".join(kind if count == 1 else f"{count} {kind}" for kind, count in groups)


def show(console: "Console", config: "RunConfig") -> None:
    """Every field that can be set, with its value and what it is."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from selattn.training.describe import descriptions
    from selattn.training.model import model_config
    from selattn.training.overrides import fields

    model, about = model_config(config), descriptions(config)
    table = Table(title=config.name, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 2, 0, 0))
    table.add_column("field", no_wrap=True)
    table.add_column("value", overflow="fold", max_width=24)
    table.add_column("what it is")
    for name in fields(config):
        value: Any = config
        if name.startswith("model."):
            value = getattr(model, name.removeprefix("model."))
        else:
            for part in name.split("."):
                value = getattr(value, part)
        table.add_row(name, escape(str(value)), escape(about.get(name, "")))
    console.print(table)
