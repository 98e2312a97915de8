"""`selattn train`: train a model. A run has a name, and any field of it can be set: `selattn train RUN seed=1`.

Under torchrun or accelerate the same command trains on many devices and machines.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from selattn.cli import _options
from selattn.errors import SelattnError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from selattn.training import Finished, RunConfig


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `selattn train` and its options to the command line."""
    parser = _options.add_command(subparsers, "train", "train a model", __doc__)
    parser.add_argument("run", nargs="?", metavar="RUN", help="a name of --list, or MODULE:NAME")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a setting; `--set` itself may be left out"
    )
    parser.add_argument("--out", type=_options.name, metavar="FOLDER", help="folder of the run (default: runs/RUN)")
    parser.add_argument("--resume", action="store_true", help="continue from the newest whole checkpoint")
    parser.add_argument("--overwrite", action="store_true", help="delete what the folder holds and start over")
    _options.add_html(parser)
    parser.add_argument("--list", action="store_true", help="list the runs, with RUN those whose names contain it")
    parser.add_argument("--show", action="store_true", help="print the fields of the run, with their values")


def run(args: argparse.Namespace) -> int:
    """List, show or train."""
    from selattn.training.presets import RUNS, find_run

    return carry_out(args, find_run, {"Text on a laptop": RUNS})


def carry_out(args: argparse.Namespace, find_run: Callable[[str], RunConfig], groups: Any) -> int:
    """The same with runs by other names."""
    from rich.console import Console

    from selattn.cli.settings import override

    console = Console(highlight=False)
    if args.list:
        _options.refuse(args, ["set", "out", "resume", "overwrite", "show", "html"], "--list only lists the runs")
        list_runs(console, args.run or "", groups)
        return 0
    if args.run is None:
        raise SelattnError("no run given: give one that --list lists")
    if args.resume and args.overwrite:
        raise SelattnError("--resume continues a run and --overwrite starts over: give one of them")
    config = override(find_run(args.run), args.set)
    if args.show:
        _options.refuse(args, ["out", "resume", "overwrite", "html"], "--show only prints the fields")
        show(console, config)
        return 0
    _options.check_files(args, ["html"])
    return trained(config, args)


def trained(config: RunConfig, args: argparse.Namespace) -> int:
    """Train with a bar, and say how it ended."""
    from rich.console import Console

    from selattn.cli.main import INTERRUPTED
    from selattn.training import train
    from selattn.training.launch import resume_command
    from selattn.utils.distributed import leads
    from selattn.utils.progress import Shown

    folder = args.out or f"runs/{config.name}"
    finished = train(config, folder, resume=args.resume, overwrite=args.overwrite, progress=Shown(keep=True))
    if not leads():
        return INTERRUPTED if finished.interrupted else 0
    console = Console(highlight=False, stderr=True)
    if finished.interrupted:
        console.print(
            f"stopped at step {finished.step:,} with a checkpoint; continue with:\n  {resume_command()}", soft_wrap=True
        )
        return INTERRUPTED
    summarize(console, finished)
    if args.html is not None:
        write_report(finished, args.html)
        console.print(f"reported in {args.html}", soft_wrap=True)
    return 0


def write_report(finished: Finished, file: Path) -> None:
    """The report of a run, from its record and its log."""
    from selattn.training.folder import LOG, MODEL, RECORD, read_log
    from selattn.utils.records import read_record
    from selattn.views.reports import training_report

    record = read_record(finished.folder / MODEL / RECORD)
    training_report(record, read_log(finished.folder / LOG), str(finished.folder)).save(file)


def summarize(console: Console, finished: Finished) -> None:
    """The last evaluation and where the model is."""
    from selattn.training.record import shares, shown

    record = finished.record
    assert record is not None
    console.print(f"[bold]step {record.steps:,}[/]  {shown(record.evaluation)}", soft_wrap=True)
    kept = record.evaluation["validation"].kept
    if kept:
        console.print(f"kept by layer  {shares(kept)}")
    console.print(f"{record.tokens:,} tokens in {record.seconds:,.0f} s; the model is in {finished.folder}/model")


def list_runs(console: Console, containing: str, groups: Mapping[str, Mapping[str, Callable[[], RunConfig]]]) -> None:
    """The runs in tables, one for each group of `title: {name: run}`."""
    from selattn.utils.tables import Table

    if not any(containing in name for runs in groups.values() for name in runs):
        raise SelattnError(f"no run has {containing!r} in its name: --list alone lists all")
    for title, runs in groups.items():
        rows = []
        for name, make in runs.items():
            if containing in name:
                config = make()
                model, numbers = config.model, (config.data.context, config.batch.size, config.schedule.steps)
                kind = attention(model["attention"]) + (", memory loss" if model.get("memory_epsilon") else "")
                rows.append((name, kind, size(model), *(f"{number:,}" for number in numbers)))
        if rows:
            head = ("run", "attention", "size", "context", "batch", "steps")
            console.print(Table(head, rows, title, left=[1], whole=[0]).rich())


def size(model: Mapping[str, Any]) -> str:
    """Layers and the size of a state; of T5 the layers of encoder and decoder."""
    if "num_decoder_layers" in model:
        return f"{model['num_layers']}+{model['num_decoder_layers']}×{model['d_model']}"
    return f"{model['num_hidden_layers']}×{model['hidden_size']}"


def attention(kinds: str | Sequence[str]) -> str:
    """The kinds of the layers, with counts: `3 local:32, standard`."""
    from itertools import groupby

    groups = [(kind, len(list(same))) for kind, same in groupby([kinds] if isinstance(kinds, str) else kinds)]
    return ", ".join(kind if count == 1 else f"{count} {kind}" for kind, count in groups)


def show(console: Console, config: RunConfig) -> None:
    """Show every field that can be set, with its value and meaning."""
    from selattn.cli.settings import descriptions
    from selattn.training.config import fields
    from selattn.utils.tables import Table

    model, about, rows = config.maker().settings(config), descriptions(config), []
    for name in fields(config):
        value: Any = config
        if name.startswith("model."):
            value = getattr(model, name.removeprefix("model."))
        else:
            for part in name.split("."):
                value = getattr(value, part)
        rows.append((name, str(value), about.get(name, "")))
    console.print(Table(("field", "value", "meaning"), rows, config.name, left=[1, 2], whole=[0]).rich())
