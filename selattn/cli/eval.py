"""`selattn eval`: how good models are and what that costs, side by side: text, multiple choice, memory, speed.

MODEL@BUDGETS prunes a model, with BUDGETS as 64, or 8,48,8, a budgets file or the folder of a search;
MODEL@BUDGETS:POLICY names the policy, too. With --record an interrupted evaluation is resumed by the same command.

With --curve the trade-off between loss and KV size is measured and drawn: MODEL@SEARCH along a search,
MODEL@sizes:POLICY with equal budgets, MODEL as one point.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selattn.cli import _options
from selattn.cli._options import SOURCES, TEXT, add_command, add_text_options, check_reading, texts_of
from selattn.errors import SelattnError
from selattn.utils.records import check_output

if TYPE_CHECKING:
    from rich.console import Console

    from selattn.evaluation import Tradeoff
    from selattn.evaluation.tradeoff import Curve
    from selattn.utils.distributed import Team

FORMATS = (".png", ".svg", ".pdf")


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `selattn eval` and its options to the command line."""
    parser = add_command(subparsers, "eval", "loss, multiple choice, memory and speed of models", __doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL[@BUDGETS[:POLICY]]", help="one or several")
    parser.add_argument("--policy", help="eviction policy of models that have budgets and name none")
    parser.add_argument("--data", nargs="+", default=[], metavar="TEXT", help=f"log-perplexity on texts: {SOURCES}")
    _options.number(parser, "--rows", "rows of a text (default: all)")
    parser.add_argument(
        "--skip",
        type=rows_or_folder,
        default=0,
        metavar="N|SEARCH",
        help="leave out the rows that a search has seen: their number, or its folder",
    )
    parser.add_argument("--long", action="store_true", help="also on the documents that fill 90%% of the context")
    parser.add_argument("--tasks", nargs="+", default=[], metavar="TASK", help="multiple choice: all, or names")
    _options.file(parser, "--data-dir", "local files of the tasks (default: the hub)", "FOLDER")
    _options.number(parser, "--limit", "questions of each task (default: all)")
    parser.add_argument("--speed", action="store_true", help="cache bytes, and tokens per second of decoding")
    curve = parser.add_argument_group("the trade-off between loss and KV size")
    curve.add_argument("--curve", action="store_true", help="measure it, on --data")
    _options.number(
        curve,
        "--sizes",
        "of its points (default: the context, and halves of it down to 2)",
        least=2,
        metavar="K",
        nargs="+",
    )
    curve.add_argument("--baseline", metavar="[NAME=]MODEL", help="say where curves reach this model's loss")
    _options.file(curve, "--extend", "add to a record on the same text", "RECORD")
    _options.file(curve, "--figure", "write the figure there (default: beside the record)")
    _options.file(parser, "--record", "write the record there (JSON)")
    _options.add_html(parser)
    add_text_options(parser)


def run(args: argparse.Namespace) -> int:
    """Measure the models, print the tables, and write the record; the exit code."""
    check_options(args)
    check_reading(args, args.data)
    from rich.console import Console

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
    if team.leads:  # here, since lm-eval's bar stays until nothing holds the exception any more
        print("\nstopped; the same command resumes it", file=sys.stderr)
    return INTERRUPTED


def rows_or_folder(text: str) -> int | str:
    """Reads how many rows, or the folder of a search; for argparse."""
    return _options.whole(0)(text) if text.removeprefix("-").isdecimal() else _options.name(text)


def parse_curve(text: str) -> Curve:
    """`MODEL@SEARCH`, `MODEL@sizes:POLICY` or `MODEL`, with `NAME=` in front for a name of one's own."""
    from selattn.cache import import_policy
    from selattn.evaluation.tradeoff import Curve
    from selattn.pruning import read_search

    label, equals, rest = text.partition("=")
    name, text = (label, rest) if equals else (text, text)
    if not name:
        raise SelattnError(f"={text} gives a curve no name: write NAME={text}, or {text} alone")
    model, at, how = text.rpartition("@")
    if not at:
        return Curve.of(text, name=name)
    what, _, policy = how.partition(":") if how.startswith("sizes") else (how, "", "")
    if how == "sizes:":
        raise SelattnError(f"{text!r} ends with a colon: write the policy behind it, or leave it out")
    if policy and not import_policy(policy).evicts:
        raise SelattnError(f"the policy {policy!r} evicts nothing, whatever the sizes: write {model} alone")
    if what == "sizes":
        return Curve.of(model, policy or None, sizes=True, name=name)
    path = Path(what).expanduser()
    if not path.is_dir():
        raise SelattnError(f"{what} is not the folder of a search; for one budget in all layers write sizes:POLICY")
    return Curve.of(model, search=read_search(path), name=name)


def check_options(args: argparse.Namespace) -> None:
    """Raise for options that do not fit together."""
    if not (args.data or args.tasks or args.speed):
        raise SelattnError("nothing to measure: give --data, --tasks or --speed")
    if args.curve and (not args.data or args.tasks or args.speed):
        raise SelattnError("--curve measures the loss on --data, and nothing else")
    if args.curve:
        _options.refuse(args, ["policy"], "with --curve a policy belongs to its curve: MODEL@sizes:POLICY")
    else:
        _options.refuse(args, ["sizes", "baseline", "figure", "extend"], "without --curve no curve is measured")
    if not args.data:
        _options.refuse(args, ["rows", "skip", "long", "no_eos", *TEXT], "without --data no text is read")
    if not args.tasks:
        _options.refuse(args, ["data_dir", "limit"], "without --tasks no questions are asked")
    if not (args.data or args.tasks):
        _options.refuse(args, ["batch"], "--speed decodes one sequence")


def run_side_by_side(args: argparse.Namespace, console: Console, team: Team) -> None:
    """Measure, record, show."""
    from selattn.evaluation import evaluate
    from selattn.evaluation.subjects import Subject
    from selattn.utils.records import provenance
    from selattn.views.reports import comparison_report, comparison_tables

    subjects = [Subject.parse(model, args.policy) for model in args.models]
    how = {name: getattr(args, name) for name in ("tasks", "data_dir", "speed", "limit")}
    found = evaluate(subjects, texts_of(args), **how, **measuring(args, team))
    if team.leads:
        if args.html is not None:
            comparison_report(found, provenance(args.seed)).save(args.html)
        show_files(console, recorded=args.record, reported=args.html)
        for table in comparison_tables(found.models):
            console.print(table.rich())


def run_curve(args: argparse.Namespace, console: Console, team: Team) -> None:
    """Measure, record, draw, show."""
    from selattn.evaluation import measure_tradeoff
    from selattn.utils.records import provenance
    from selattn.views.reports import tradeoff_report

    figure = figure_beside(args.record, args.figure)  # before anything is measured
    baseline = None if args.baseline is None else parse_curve(args.baseline)
    how = {"baseline": baseline, "sizes": args.sizes or (), "extend": args.extend}
    found = measure_tradeoff(
        [parse_curve(each) for each in args.models], texts_of(args), **how, **measuring(args, team)
    )
    if team.leads:
        if figure is not None:
            from selattn.views import plot
            from selattn.views.plot.style import write_figure

            write_figure(plot.tradeoff(found), figure)
        if args.html is not None:
            tradeoff_report(found, provenance(args.seed)).save(args.html)
        show_files(console, recorded=args.record, drawn=figure, reported=args.html)
        show_curves(found, console)


def figure_beside(record: Path | None, figure: Path | None) -> Path | None:
    """The file of the figure: `--figure`, or beside the record; raises if it cannot be written."""
    path = figure or (None if record is None else record.with_suffix(".png"))
    if path is None:
        return None
    if path.suffix not in FORMATS:
        raise SelattnError(f"--figure must end with {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, not {path}")
    if record is not None and path.absolute() == record.absolute():
        raise SelattnError(f"the figure would take the place of the record {path}: let the record end with .json")
    check_output(path)
    return path


def measuring(args: argparse.Namespace, team: Team) -> dict[str, Any]:
    """The arguments that `evaluate` and `measure_tradeoff` share."""
    from selattn.pruning import searched
    from selattn.utils.progress import Progress, Shown

    common = {name: getattr(args, name) for name in ("rows", "context", "batch", "seed", "record")}
    skip = args.skip if isinstance(args.skip, int) else searched(args.skip)
    return {**common, "skip": skip, "progress": Shown() if team.leads else Progress(), "team": team}


def show_files(console: Console, **files: Path | None) -> None:
    """Name the files that were written: `recorded=...`, `drawn=...`."""
    for what, file in files.items():
        if file:
            console.print(f"{what} in {file}", soft_wrap=True)


def show_curves(found: Tradeoff, console: Console) -> None:
    """Where each curve reaches the baseline's loss."""
    from selattn.views.reports import ends_table

    for text in found.texts:
        console.print(ends_table(found, text).rich())
        if found.baseline is not None:
            console.print(f"baseline {found.baseline.name}: {found.baseline.loss[text]:.4f}", soft_wrap=True)
