"""`selattn info`: versions, threads, and which attention backends work here; or what a model consists of."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from selattn.cli import _model_info

if TYPE_CHECKING:
    from rich.console import Console


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add `selattn info` and its options to the command line."""
    parser = subparsers.add_parser("info", help="versions and backends, or what a model is", description=__doc__)
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="a model's folder: its size, layers, parts and training record"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(args: argparse.Namespace) -> int:
    """Print what is found, about the machine or about the model."""
    found = collect() if args.model is None else _model_info.collect(args.model)
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        from rich.console import Console

        (draw if args.model is None else _model_info.draw)(found, Console(highlight=False))
    return 0


def collect() -> dict[str, dict[str, str | int | bool | None]]:
    """Groups of facts; of backends and of the compiled library, None stands for available, else there is the reason."""
    from selattn.ops.backends import dispatch
    from selattn.ops.backends.triton import selfcheck
    from selattn.utils import native, records

    checked = selfcheck.states()  # empty where there is no GPU
    return {
        "versions": {**records.versions()},
        "machine": {**records.machine()},
        "backends": {**dispatch.backends()},
        **({"self-check of the GPU kernels": {**checked}} if checked else {}),
        "compiled library": {"attention, decoding": native.unavailable(), "instruction set": native.target() or "none"},
    }


def draw(found: dict[str, dict[str, str | int | bool | None]], console: "Console") -> None:
    """The same as tables."""
    from rich.table import Table
    from rich.text import Text

    from selattn.utils import native

    for group, rows in found.items():
        table = Table(title=group, title_justify="left", show_header=False)
        for name, value in rows.items():
            if value is None:
                shown = Text("available", "green")
            elif group == "backends" or value == native.unavailable():
                shown = Text(str(value), "yellow")
            elif isinstance(value, bool):
                shown = Text("yes" if value else "no")
            else:
                shown = Text(str(value), "dim" if value == "not installed" else "")
            table.add_row(name, shown)
        console.print(table)
