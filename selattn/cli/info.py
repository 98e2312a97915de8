"""`selattn info`: versions, threads, and which attention backends work here, or why not."""

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Register the command."""
    parser = subparsers.add_parser("info", help="versions, threads and attention backends", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(args: argparse.Namespace) -> int:
    """Print what `collect` finds."""
    found = collect()
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        from rich.console import Console

        draw(found, Console(highlight=False))
    return 0


def collect() -> dict[str, dict[str, str | int | bool | None]]:
    """Three groups: `versions`, `machine`, and `backends` (None for an available one, else the reason)."""
    from selattn import records
    from selattn.ops import dispatch

    return {"versions": {**records.versions()}, "machine": {**records.machine()}, "backends": {**dispatch.backends()}}


def draw(found: dict[str, dict[str, str | int | bool | None]], console: "Console") -> None:
    """The same as three tables."""
    from rich.table import Table
    from rich.text import Text

    for group, rows in found.items():
        table = Table(title=group, title_justify="left", show_header=False)
        for name, value in rows.items():
            if group == "backends":
                shown = Text("available", "green") if value is None else Text(str(value), "yellow")
            elif isinstance(value, bool):
                shown = Text("yes" if value else "no")
            else:
                shown = Text(str(value), "dim" if value == "not installed" else "")
            table.add_row(name, shown)
        console.print(table)
