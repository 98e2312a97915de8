"""`selattn prune`: find how few tokens each layer may keep, searched on some rows of a text and reported on others.

The paper's greedy search: all layers begin with K = N; in each iteration the layer whose loss suffers least gives C
tokens. An interrupted search is resumed by the same command. Under torchrun several processes share the rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selattn.cli import _options
from selattn.cli._options import SOURCES, add_command, add_text_options, check_reading, text_of

if TYPE_CHECKING:
    from rich.console import Console

    from selattn.pruning import SearchRecord


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `selattn prune` and its options to the command line."""
    parser = add_command(subparsers, "prune", "find small budgets for the cache", __doc__)
    parser.add_argument("model", metavar="MODEL", help="a model's folder, a run's folder, or zoo:NAME")
    parser.add_argument("--data", required=True, metavar="TEXT", help=f"text to search on: {SOURCES}")
    parser.add_argument(
        "--until",
        action="append",
        required=True,
        metavar="WHAT",
        help="where to stop: baseline=MODEL (its loss), tolerance=NATS (above the unpruned loss), loss=NATS, factor=X, "
        "tokens=TOTAL, or floor; may be repeated: the first that is met counts",
    )
    _options.file(parser, "--out", "folder of the search (default: runs/prune/MODEL)", "FOLDER")
    parser.add_argument("--lazy", action="store_true", help="evaluate only layers that can still win")
    _options.number(parser, "--step", "tokens that a layer gives at a time", 8, metavar="C")
    _options.number(
        parser, "--floor", "then continue one token at a time, down to K (default: C)", least=2, metavar="K"
    )
    parser.add_argument("--policy", default="selective", help="eviction policy (default: selective)")
    _options.number(parser, "--rows", "rows to search on", 32)
    parser.add_argument("--report", metavar="TEXT", help="text to report on (default: other rows of --data)")
    _options.number(parser, "--report-rows", "rows to report on", 64)
    parser.add_argument("--long", action="store_true", help="only documents that fill 90%% of the context")
    _options.file(parser, "--record", "also write the record there")
    _options.file(parser, "--save-model", "copy the model, with the budgets in its config", "FOLDER")
    _options.add_html(parser)
    add_text_options(parser)


def run(args: argparse.Namespace) -> int:
    """Search, report, draw, show."""
    check_reading(args, [source for source in (args.data, args.report) if source is not None])
    from rich.console import Console

    from selattn.cli.main import INTERRUPTED
    from selattn.cli.settings import parse_until
    from selattn.pruning import prune
    from selattn.pruning.run import FIGURE, RECORD, SearchRecord, default_folder
    from selattn.utils.distributed import Team
    from selattn.utils.progress import Shown
    from selattn.utils.records import Provenance, read_body
    from selattn.views import plot  # it always draws the search
    from selattn.views.plot.style import write_figure
    from selattn.views.reports import search_report

    _options.check_files(args, ["record", "html"])
    until, out, team = parse_until(args.until), args.out or default_folder(args.model), Team()
    same = ("rows", "report_rows", "step", "floor", "lazy", "policy", "context", "batch", "record", "save_model")
    report = None if args.report is None else text_of(args, args.report, args.long)
    progress = Shown(Console(stderr=True, highlight=False, quiet=not team.leads), keep=True)
    try:
        prune(
            args.model,
            text_of(args, args.data, args.long),
            until,
            out=out,
            report=report,
            progress=progress,
            team=team,
            **{name: getattr(args, name) for name in same},
        )
    except KeyboardInterrupt:
        progress.end()
        progress.console.print("stopped; the same command resumes from the last iteration")
        return INTERRUPTED
    finally:
        progress.end()
        team.close()
    if team.leads:
        found = read_body(out / RECORD, SearchRecord)
        write_figure(plot.search(found, title=f"{args.model}, {args.policy}"), out / FIGURE)
        if args.html is not None:
            search_report(found, read_body(out / RECORD, Provenance)).save(args.html)
        summarize(Console(highlight=False), found, out)
    return 0


def summarize(console: Console, found: SearchRecord, out: Path) -> None:
    """The budgets, the factor, and the losses on unseen rows."""
    from selattn.cache.budgets import SMALLEST
    from selattn.views.reports import searched_table

    k = found.budgets
    console.print(f"[bold]{found.memory_factor:.2f} times less memory[/]: K = {list(k)}, sum {sum(k):,}")
    console.print(searched_table(found).rich())
    last = found.path[-1]
    if found.at_floor and found.until != ["floor"]:
        advice = "" if min(last.budgets) == SMALLEST else f": --floor {SMALLEST} and another --out go further"
        console.print(f"No layer can give more, and the threshold is not reached{advice}.", soft_wrap=True)
    console.print(
        f"{last.iteration} iterations, {last.work.layer_evaluations:,.0f} layer evaluations, "
        f"{last.work.seconds:,.0f} s; budgets, path and figure are in {out}",
        soft_wrap=True,
        markup=False,
    )
