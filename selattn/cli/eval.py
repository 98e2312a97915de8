"""`selattn eval`: how good models are and what that costs, side by side: text, multiple choice, memory, speed.

A model is a folder, a run's folder or zoo:NAME. MODEL@BUDGETS prunes it, BUDGETS being 64, or 8,48,8, a budgets file or
the folder of a search; MODEL@BUDGETS:POLICY chooses who leaves. With --curve the trade-off between loss and KV size is
measured and drawn: MODEL@SEARCH along a search, MODEL@sizes:POLICY for equal budgets, MODEL as it is. With --record it
can be interrupted at any time: the same command goes on.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from selattn.cli import _options
from selattn.cli._text import SOURCES, TEXT, add_text_options, fill_text_options
from selattn.errors import SelattnError


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `selattn eval` and its options to the command line."""
    parser = subparsers.add_parser(
        "eval",
        help="loss, multiple choice, memory and speed of models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="+", metavar="MODEL[@BUDGETS[:POLICY]]")
    parser.add_argument(
        "--policy",
        metavar="POLICY",
        help="who leaves, for models with budgets that name none: a name, or package.module:Class of your own",
    )
    parser.add_argument("--data", nargs="+", default=[], metavar="TEXT", help=f"log-perplexity on texts: {SOURCES}")
    parser.add_argument("--rows", type=_options.whole(1), metavar="N", help="rows of a text (default: all)")
    parser.add_argument(
        "--skip",
        type=rows_or_folder,
        metavar="N|SEARCH",
        help="leave out what a search has seen: one on N rows, or the one in a folder",
    )
    parser.add_argument("--long", action="store_true", help="also on the documents that fill 90%% of the context")
    parser.add_argument("--tasks", nargs="+", default=[], metavar="TASK", help="multiple choice: all, or names")
    parser.add_argument(
        "--data-dir", type=_options.path, metavar="FOLDER", help="local files of the tasks (default: the hub)"
    )
    parser.add_argument("--limit", type=_options.whole(1), metavar="N", help="at most so many questions of each task")
    parser.add_argument("--speed", action="store_true", help="cache bytes, and tokens per second of decoding")
    parser.add_argument("--curve", action="store_true", help="the trade-off between loss and KV size, on --data")
    parser.add_argument(
        "--sizes",
        type=_options.whole(2),
        nargs="+",
        metavar="K",
        help="with --curve: of its points (default: the context, and halves of it down to 2)",
    )
    parser.add_argument("--baseline", metavar="[NAME=]MODEL", help="with --curve: where curves reach this model's loss")
    parser.add_argument(
        "--extend",
        type=_options.path,
        metavar="RECORD",
        help="with --curve: add to the curves of a record on the same text",
    )
    parser.add_argument("--record", type=_options.path, metavar="FILE", help="write the record there (JSON)")
    parser.add_argument(
        "--figure", type=_options.path, metavar="FILE", help="with --curve (default: beside the record)"
    )
    _options.add_html(parser)
    add_text_options(parser)


def run(args: argparse.Namespace) -> int:
    """Measure the models, print the tables, and write the record; the exit code."""
    check_options(args)
    fill_text_options(args, args.data)
    _options.fill(args, {"skip": 0})
    from rich.console import Console

    from selattn.cli._measure import run_curve, run_side_by_side
    from selattn.cli.main import INTERRUPTED
    from selattn.utils.distributed import Team

    _options.check_files(args, ["record", "figure", "html"])
    team, console = Team(), Console(highlight=False, markup=False)
    try:
        (run_curve if args.curve else run_side_by_side)(args, console, team)
        return 0
    except KeyboardInterrupt:
        if args.record is None:
            raise
    finally:
        team.close()
    if team.leads:  # here, since lm-eval's bar goes on until nothing holds the exception any more
        print("\nstopped; the same command goes on with what is missing", file=sys.stderr)
    return INTERRUPTED


def rows_or_folder(text: str) -> int | str:
    """Reads how many rows, or the folder of a search; for argparse."""
    return _options.whole(0)(text) if text.removeprefix("-").isdecimal() else _options.name(text)


def check_options(args: argparse.Namespace) -> None:
    """Whether what is asked for fits together."""
    if not (args.data or args.tasks or args.speed):
        raise SelattnError("nothing to measure: give --data, --tasks or --speed")
    if args.curve and (not args.data or args.tasks or args.speed):
        raise SelattnError("--curve measures the loss on --data, and nothing else")
    if args.curve:
        _options.refuse(args, ["policy"], "with --curve a policy stands behind its curve: MODEL@sizes:POLICY")
    else:
        _options.refuse(args, ["sizes", "baseline", "figure", "extend"], "give --curve for what belongs to it")
    if not args.data:
        _options.refuse(args, ["rows", "skip", "long", "no_eos", *TEXT], "without --data no text is read")
    if not args.tasks:
        _options.refuse(args, ["data_dir", "limit"], "without --tasks no questions are asked")
    if not (args.data or args.tasks):
        _options.refuse(args, ["batch"], "--speed decodes one sequence")
