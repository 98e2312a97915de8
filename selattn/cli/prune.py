"""`selattn prune`: find how few tokens each layer may keep, searched on some rows of a text and reported on others.

The paper's greedy search: all layers begin with K = N; in each iteration the layer whose loss suffers least gives C
tokens. Interrupt it at any time: the same command goes on. Under torchrun several processes share the rows out.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selattn.cli import _options
from selattn.cli._text import SOURCES, add_text_options, fill_text_options, text_of
from selattn.errors import SelattnError

if TYPE_CHECKING:
    from selattn.pruning.job import Job, Pruned
    from selattn.utils.distributed import Team

FIGURE, RECORD = "path.png", "record.json"


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Register the command."""
    parser = subparsers.add_parser("prune", help="find small budgets for the cache", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="a model's folder, a run's folder, or zoo:NAME")
    parser.add_argument("--data", required=True, metavar="TEXT", help=f"what to search on: {SOURCES}")
    parser.add_argument(
        "--until",
        action="append",
        required=True,
        metavar="WHAT",
        help="where to stop: baseline=MODEL (its loss), tolerance=NATS (above the unpruned loss), loss=NATS, factor=X, "
        "tokens=TOTAL, or floor; of several the first that is met",
    )
    parser.add_argument("--out", type=_options.path, metavar="FOLDER", help="of the search (default: runs/prune/MODEL)")
    parser.add_argument("--lazy", action="store_true", help="evaluate only layers that can still win")
    parser.add_argument(
        "--step", type=_options.whole(1), default=8, metavar="C", help="tokens that a layer gives (default: 8)"
    )
    parser.add_argument(
        "--floor", type=_options.whole(2), metavar="K", help="go on, one token at a time, down to K (default: C)"
    )
    parser.add_argument("--policy", default="selective", help="who leaves when a layer is full (default: selective)")
    parser.add_argument(
        "--rows", type=_options.whole(1), default=32, metavar="N", help="rows to search on (default: 32)"
    )
    parser.add_argument("--report", metavar="TEXT", help="what to report on (default: other rows of --data)")
    parser.add_argument("--report-rows", type=_options.whole(1), default=64, metavar="N", help="default: 64")
    parser.add_argument("--long", action="store_true", help="only documents that fill 90%% of the context")
    parser.add_argument("--record", type=_options.path, metavar="FILE", help="where the record goes, too")
    parser.add_argument(
        "--save-model", type=_options.path, metavar="FOLDER", help="copy the model, with the budgets in its config"
    )
    add_text_options(parser)


def run(args: argparse.Namespace) -> int:
    """Search, report, write."""
    fill_text_options(args, [source for source in (args.data, args.report) if source is not None])
    job = make_job(args)
    check_outputs(args, job)
    from rich.console import Console

    from selattn.cli.main import INTERRUPTED
    from selattn.pruning.display import SearchDisplay
    from selattn.pruning.job import prune
    from selattn.report.search_path import draw_path
    from selattn.utils.distributed import Team

    team = Team()
    display = SearchDisplay(Console(stderr=True, highlight=False, quiet=not team.leads), last_iteration(job))
    try:
        pruned = prune(job, team, display)
    except KeyboardInterrupt:
        display.close()
        display.console.print("stopped; the same command goes on from the last iteration")
        return INTERRUPTED
    finally:
        display.close()
        team.close()
    if team.leads:
        draw_path(job.out / FIGURE, pruned.path, pruned.step, pruned.limit, f"{job.model}, {job.policy}")
        record(args, job, pruned, team)
        if args.save_model:
            save_model(args.save_model, job, pruned)
        summarize(Console(highlight=False), job, pruned)
    return 0


def make_job(args: argparse.Namespace) -> Job:
    """The options, checked."""
    from selattn.eviction import import_policy
    from selattn.models.loading import load
    from selattn.pruning import Procedure, parse_until
    from selattn.pruning.job import Job

    if args.save_model and ":" in args.policy:
        raise SelattnError(f"a saved config names built-in policies only, not {args.policy}: leave --save-model out")
    if not import_policy(args.policy).evicts:
        raise SelattnError(f"the policy {args.policy!r} drops nothing: there is nothing to search for")
    until = parse_until(args.until)
    context = load(args.model).description.context if args.context is None else args.context
    return Job(
        model=args.model,
        out=args.out or Path("runs/prune") / args.model.removeprefix("zoo:").strip("/").replace("/", "-"),
        text=text_of(args, args.data, args.long),
        rows=args.rows,
        until=until,
        procedure=Procedure(context, args.step, args.floor, args.lazy),
        policy=args.policy,
        report=None if args.report is None else text_of(args, args.report, args.long),
        report_rows=args.report_rows,
        batch=args.batch,
    )


def check_outputs(args: argparse.Namespace, job: Job) -> None:
    """Whether all can be written where it is to go, before the search rather than after it."""
    from selattn.evaluation.subjects import BUDGETS
    from selattn.pruning.path import PATH, SETTINGS
    from selattn.utils.records import check_output

    check_output(args.record)
    for name in (FIGURE, PATH, SETTINGS, BUDGETS):
        if args.record and args.record.absolute() == (job.out / name).absolute():
            raise SelattnError(f"the record would take the place of the search's {args.record}: give it another name")
    if args.save_model:
        _options.new_folder(args.save_model)
        if args.save_model.absolute() == job.out.absolute():
            raise SelattnError(f"--save-model and --out are both {job.out}: give the model a folder of its own")


def last_iteration(job: Job) -> int | None:
    """Where the search ends, if that is known: each iteration takes a known number of tokens."""
    import math

    from selattn.models.loading import load

    until, procedure = job.until, job.procedure
    if until.baseline is not None or until.tolerance is not None or until.loss < math.inf:
        return None
    layers = load(job.model).description.layers
    return procedure.iterations(layers, max(until.tokens, layers * procedure.context / until.factor))


def record(args: argparse.Namespace, job: Job, pruned: Pruned, team: Team) -> None:
    """The whole path with the settings, versions and the command."""
    import dataclasses

    from selattn.models.loading import load
    from selattn.utils.records import write_record

    data = {
        "model": job.model,
        "training_seed": load(job.model).training_seed,
        "until": args.until,
        "policy": job.policy,
        "procedure": dataclasses.asdict(job.procedure),
        "text": dataclasses.asdict(job.text),
        "report_text": None if job.report is None else dataclasses.asdict(job.report),
        "rows": {"search": job.rows, "report": job.report_rows},
        "processes": team.size,
        **pruned.to_json(),
    }
    for path in filter(None, (job.out / RECORD, args.record)):
        write_record(path, data, seed=job.text.seed)


def save_model(folder: Path, job: Job, pruned: Pruned) -> None:
    """The model's files, and its config with the budgets and the policy in it."""
    import shutil

    from selattn.models.loading import load
    from selattn.utils.folders import make_folder

    source = load(job.model)

    def fill(part: Path) -> None:
        for file in source.folder.iterdir():
            if file.is_file():
                shutil.copy2(file, part)
        config = source.config
        config.cache_budgets, config.cache_policy = list(pruned.step.budgets), job.policy
        config.save_pretrained(part)

    make_folder(folder, fill)


def summarize(console: Any, job: Job, pruned: Pruned) -> None:
    """The budgets, the factor, and the losses on unseen rows."""
    from rich.table import Table

    from selattn.eviction.budgets import SMALLEST

    step = pruned.step
    console.print(f"[bold]{step.factor:.2f} times less memory[/]: K = {list(step.budgets)}, sum {sum(step.budgets):,}")
    table = Table("", "search set", "report set")
    first = pruned.path[0]
    table.add_row("unpruned", f"{first.loss:.4f}", f"{pruned.reported['unpruned']:.4f}")
    table.add_row("with these budgets", f"{step.loss:.4f}", f"{pruned.reported['pruned']:.4f}")
    if "baseline" in pruned.reported:
        table.add_row(f"baseline {job.until.baseline}", f"{pruned.baseline:.4f}", f"{pruned.reported['baseline']:.4f}")
    console.print(table)
    if pruned.at_floor and (pruned.limit < float("inf") or job.until.tokens or job.until.factor < float("inf")):
        advice = "" if job.procedure.smallest == SMALLEST else f": --floor {SMALLEST} and another --out go further"
        console.print(f"No layer can give more, and the threshold is not reached{advice}.", soft_wrap=True)
    work = pruned.path[-1].work
    console.print(
        f"{pruned.path[-1].iteration} iterations, {work['layer_evaluations']:,.0f} layer evaluations, "
        f"{work['seconds']:,.0f} s; budgets, path and figure are in {job.out}",
        soft_wrap=True,
        markup=False,
    )
