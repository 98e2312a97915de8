"""What `selattn data show` prints: the beginning of some documents."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from selattn.cli import _options
from selattn.cli._text import READING, check_reading, reading_of

if TYPE_CHECKING:
    from rich.console import Console

    from selattn.data import Reading


def read_with(args: argparse.Namespace, source: str) -> Reading:
    """The settings for reading a source."""
    check_reading(args, [source])
    _options.fill(args, READING)
    return reading_of(args, args.limit)


def show_text(args: argparse.Namespace, console: Console) -> None:
    """The beginning of the first documents."""
    from itertools import islice

    from selattn.data import documents

    for text in islice(documents(args.name, args.split, read_with(args, args.name)), args.samples):
        console.rule(f"{len(text):,} characters", align="left")
        console.print(text[:600] + (" ..." if len(text) > 600 else ""), markup=False)
