"""`selattn zoo`: the small trained models that come with the repository. Any command takes one as `zoo:NAME`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Register the command."""
    parser = subparsers.add_parser("zoo", help="the small trained models", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="with --make: which ones (default: all)")
    parser.add_argument("--make", action="store_true", help="train and export the models that are missing")
    parser.add_argument("--source", metavar="TEXT", help="with --make: what the language models read")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="with --make: a setting of every run"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/zoo"), metavar="FOLDER", help="of the runs")


def run(args: argparse.Namespace) -> int:
    """List the models, or make them."""
    from rich.console import Console

    from selattn.errors import SelattnError

    console = Console(highlight=False)
    if args.make:
        code = make(args, console)
        if code:
            return code
    elif args.names or args.source or args.set:
        raise SelattnError("names and settings go with --make; without it the zoo is listed")
    list_models(console)
    return 0


def make(args: argparse.Namespace, console: "Console") -> int:
    """Train and export; an exit code."""
    import difflib

    from selattn.cli.main import INTERRUPTED
    from selattn.errors import SelattnError
    from selattn.train.display import make_display
    from selattn.train.zoo import make_zoo, names

    for name in args.names:
        if name not in names():
            near = difflib.get_close_matches(name, names(), 1, 0.5)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names())}"
            raise SelattnError(f"unknown model {name!r}; {advice}")
    if make_zoo(args.names or names(), args.source, args.set, args.runs, make_display):
        return 0
    console.print("stopped with a checkpoint; the same command goes on")
    return INTERRUPTED


def list_models(console: "Console") -> None:
    """The table of those that are there."""
    import json

    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from selattn.models.zoo import PREFIX, zoo_folder, zoo_models

    models = zoo_models()
    if not models:
        console.print(f"There are no models in {zoo_folder()}.")
        return
    table = Table(title="zoo", title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("model", no_wrap=True)
    table.add_column("trained on", no_wrap=True, max_width=13)
    for name in ("N", "tokens", "score", "MB"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, path in models.items():
        config = json.loads((path / "config.json").read_text())
        record = json.loads((path / "training_record.json").read_text())
        data, found = record["run"]["data"], record["evaluation"]["validation"]
        table.add_row(
            PREFIX + name,
            Path(data["source"]).name if data["kind"] == "text" else data["kind"],
            f"{config['max_position_embeddings']:,}",
            f"{record['tokens'] / 1e6:.1f}M",
            f"{found['accuracy']:.1%}" if "accuracy" in found else f"{found['loss']:.3f}",
            f"{sum(file.stat().st_size for file in path.iterdir()) / 1e6:.1f}",
        )
    console.print(table, "[dim]N: context; score: validation loss per token, or the share of right answers[/]")
