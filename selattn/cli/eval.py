"""`selattn eval`: how good models are and what that costs, side by side: text, multiple choice, memory, speed.

A model is a folder, a run's folder or zoo:NAME. MODEL@BUDGETS prunes it, BUDGETS being a number, a budgets file or the
folder of a search; MODEL@BUDGETS:POLICY chooses who leaves. With --curve the trade-off between loss and KV size is
measured and drawn: MODEL@SEARCH along a search, MODEL@sizes:POLICY for equal budgets, MODEL as it is. With --record it
can be interrupted at any time: the same command goes on.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from selattn.cli._text import SOURCES, add_text_options
from selattn.errors import SelattnError


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "eval",
        help="loss, multiple choice, memory and speed of models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="+", metavar="MODEL[@BUDGETS[:POLICY]]")
    parser.add_argument("--data", nargs="+", default=[], metavar="TEXT", help=f"log-perplexity on texts: {SOURCES}")
    parser.add_argument("--rows", type=int, metavar="N", help="rows of a text (default: all)")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="leave out the first rows: a search's")
    parser.add_argument("--long", action="store_true", help="also on the documents that fill 90%% of the context")
    parser.add_argument("--tasks", nargs="+", default=[], metavar="TASK", help="multiple choice: all, or names")
    parser.add_argument("--data-dir", type=Path, metavar="FOLDER", help="local files of the tasks (default: the hub)")
    parser.add_argument("--limit", type=int, metavar="N", help="at most so many questions of each task")
    parser.add_argument("--speed", action="store_true", help="cache bytes, and tokens per second of decoding")
    parser.add_argument("--curve", action="store_true", help="the trade-off between loss and KV size, on --data")
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        metavar="K",
        help="of a curve's points (default: the context, and halves of it down to 2)",
    )
    parser.add_argument("--baseline", metavar="[NAME=]MODEL", help="with --curve: where curves reach this model's loss")
    parser.add_argument(
        "--extend", type=Path, metavar="RECORD", help="with --curve: add to the curves of a record on the same text"
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the record there (JSON)")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="with --curve (default: beside the record)")
    add_text_options(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, show, record."""
    if not (args.data or args.tasks or args.speed):
        raise SelattnError("nothing to measure: give --data, --tasks or --speed")
    for name, least in (("rows", 1), ("limit", 1), ("batch", 1), ("context", 2), ("skip", 0)):
        if getattr(args, name) is not None and getattr(args, name) < least:
            raise SelattnError(f"--{name} must be at least {least}, not {getattr(args, name)}")
    if args.sizes and min(args.sizes) < 2:
        raise SelattnError(f"--sizes must be at least 2 tokens, not {min(args.sizes)}")
    if (args.baseline or args.figure or args.extend) and not args.curve:
        raise SelattnError("--baseline, --figure and --extend belong to --curve")
    from rich.console import Console

    from selattn.cli._curve import run_curve
    from selattn.cli._side_by_side import run_side_by_side
    from selattn.cli.main import INTERRUPTED
    from selattn.evaluate.team import Team
    from selattn.records import check_output

    check_output(args.record)
    team = Team()
    try:
        (run_curve if args.curve else run_side_by_side)(args, Console(highlight=False, markup=False), team)
        return 0
    except KeyboardInterrupt:
        if args.record is None:
            raise
    finally:
        team.close()
    if team.leads:  # here, since lm-eval's bar goes on until nothing holds the exception any more
        print("\nstopped; the same command goes on with what is missing", file=sys.stderr)
    return INTERRUPTED
