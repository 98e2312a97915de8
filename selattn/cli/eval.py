"""`selattn eval`: how good models are and what that costs, side by side: text, multiple choice, memory, speed.

A model is a folder, a run's folder or zoo:NAME. MODEL@BUDGETS prunes it, BUDGETS being a number, a budgets file or the
folder of a search; MODEL@BUDGETS:POLICY chooses who leaves. With --curve the trade-off between loss and KV size is
measured and drawn: MODEL@SEARCH along a search, MODEL@sizes:POLICY for equal budgets, MODEL as it is.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selattn.cli._text import SOURCES, add_text_options, texts_of
from selattn.errors import SelattnError

if TYPE_CHECKING:
    from rich.console import Console

    from selattn.evaluate.subjects import Subject


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
    if (args.baseline or args.figure) and not args.curve:
        raise SelattnError("--baseline and --figure belong to --curve")
    from rich.console import Console

    console = Console(highlight=False)
    if args.curve:
        from selattn.cli._curve import run_curve

        return run_curve(args, console)
    from selattn.evaluate.subjects import Subject

    tasks: list[str] = []
    if args.tasks:
        from selattn.evaluate.tasks import check_tasks, find_local

        tasks = check_tasks([name for names in args.tasks for name in names.split(",")])
        if args.data_dir is not None:
            find_local(tasks, args.data_dir)
    subjects = [Subject.parse(text) for text in args.models]
    from selattn.evaluate.team import Team

    team = Team()
    try:
        found = [evaluate(args, subject, tasks, team) for subject in subjects]
    finally:
        team.close()
    if not team.leads:
        return 0
    show(found, console)
    if args.record:
        from selattn.records import write_record

        settings = {name: getattr(args, name) for name in ("split", "layout", "rows", "skip", "limit", "batch")}
        write_record(args.record, {"settings": settings, "models": found}, seed=args.seed)
        console.print(f"recorded in {args.record}", soft_wrap=True)
    return 0


def evaluate(args: argparse.Namespace, subject: Subject, tasks: list[str], team: Any) -> dict[str, Any]:
    """Everything that was asked for about one model."""
    import dataclasses

    from selattn.evaluate.decoding import measure_decoding
    from selattn.evaluate.kv_size import kv_size
    from selattn.evaluate.subjects import fingerprint

    model = subject.load()
    context = args.context or model.config.max_position_embeddings
    size = kv_size(model.config, context)
    found: dict[str, Any] = {
        "model": subject.name,
        "fingerprint": fingerprint(subject.folder),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "context": context,
        "budgets": None if model.config.budgets is None else model.config.budgets.to_json(),
        "policy": model.config.cache_policy,
        "kv": {"held": size.held, "read": size.read, "mean": size.mean, "memory_factor": size.factor},
    }
    if args.data:
        found["text"] = text_losses(args, subject, model, context, team)
    if tasks and team.leads:
        from transformers import AutoTokenizer

        from selattn.evaluate.subjects import tokenizer_of
        from selattn.evaluate.tasks import run_tasks

        tokenizer_of(subject.folder)  # says in one line if there is none, or another model's
        tokenizer = AutoTokenizer.from_pretrained(subject.folder)
        found["tasks"] = run_tasks(model, tokenizer, tasks, args.data_dir, args.limit, args.batch, args.seed)
    if args.speed and team.leads:
        found["decoding"] = dataclasses.asdict(measure_decoding(model, context, seed=args.seed))
    return found


def text_losses(args: argparse.Namespace, subject: Subject, model: Any, context: int, team: Any) -> dict[str, Any]:
    """The log-perplexity on each text, and on its long documents if wanted."""
    import math

    from selattn.cli._bar import rows_bar
    from selattn.evaluate import log_perplexity, make_batches
    from selattn.evaluate.subjects import tokenizer_of

    found: dict[str, Any] = {}
    tokenizer = tokenizer_of(subject.folder)
    for name, text in texts_of(args).items():
        rows = text.rows(tokenizer, context, progress=team.leads).take(args.rows, args.skip)
        batches = make_batches(rows, args.batch)
        with rows_bar(f"{subject.name}: {name}", len(team.share(batches)) * args.batch, team.leads) as tick:
            loss = log_perplexity(model, batches, team=team, tick=tick)
        tokens = sum(batch.tokens for batch in batches)
        found[name] = {"loss": loss, "perplexity": math.exp(loss), "rows": len(rows), "tokens": tokens}
    return found


def show(found: list[dict[str, Any]], console: Console) -> None:
    """Tables with a line for each model."""
    from rich.table import Table

    table = Table(title="models", title_justify="left")
    table.add_column("model", overflow="fold")
    texts = list(found[0].get("text", {}))
    for heading in (*texts, "KV factor"):
        table.add_column(heading, justify="right")
    if "decoding" in found[0]:
        for heading in ("cache bytes", "of a whole one", "tokens/s"):
            table.add_column(heading, justify="right")
    for one in found:
        cells = [f"{one['text'][name]['loss']:.4f}" for name in texts]
        cells.append(f"{one['kv']['memory_factor']:.2f}")
        if "decoding" in one:
            speed = one["decoding"]
            cells += [f"{speed['cache_bytes']:,}", f"{speed['full_bytes']:,}", f"{speed['tokens_per_second']:.1f}"]
        table.add_row(one["model"], *cells)
    console.print(table)
    if "tasks" not in found[0]:
        return
    tasks = Table("task (questions)", "", title="multiple choice, % right ± standard error", title_justify="left")
    for one in found:
        tasks.add_column(one["model"], justify="right", overflow="fold")
    for name, first in found[0]["tasks"].items():
        for metric, shown in (("acc", "accuracy"), ("acc_norm", "normalised")):
            label = f"{name} ({first['questions']:,})" if metric == "acc" else ""
            results = [one["tasks"][name] for one in found]
            tasks.add_row(label, shown, *(percent(task[metric], task[f"{metric}_stderr"]) for task in results))
    console.print(tasks)


def percent(share: float, error: float | None) -> str:
    """With its standard error; a single question has none."""
    return f"{100 * share:.1f}" + ("" if error is None else f" ± {100 * error:.1f}")
