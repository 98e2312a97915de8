"""`python -m lab train NAME`: one of the lab's runs, with the options of `selattn train`."""

from __future__ import annotations

from collections.abc import Sequence

from lab.runs import GROUPS, find_run
from selattn.cli import train
from selattn.cli._options import Parser


def main(argv: Sequence[str]) -> int:
    """List, show or train."""
    parser = Parser(prog="python -m lab", description=__doc__)
    train.add_parser(parser.add_subparsers())
    args = parser.parse_args(["train", *argv])
    return train.carry_out(args, find_run, {group.title: group.runs for group in GROUPS})
