"""`selattn eval` without --curve: one record and tables with a line for each model."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selattn.cli._text import skipped, texts_of

if TYPE_CHECKING:
    from rich.console import Console

    from selattn.evaluation.parts import Key, Parts
    from selattn.evaluation.subjects import Subject
    from selattn.evaluation.text import TextRows
    from selattn.utils.distributed import Team


@dataclass(frozen=True)
class Plan:
    """What is to be measured of a model; nothing of it is loaded yet.

    Attributes:
        subject: the model.
        context: N.
        about: what the record says of it besides.
        texts: the rows of each text, and what the loss on them depends on.
        tasks: what each task's result depends on.
        decoding: what the speed depends on; None if it is not wanted.
    """

    subject: Subject
    context: int
    about: dict[str, Any]
    texts: dict[str, tuple[TextRows, Key]]
    tasks: dict[str, Key]
    decoding: Key | None

    @property
    def keys(self) -> list[Key]:
        """Of all parts."""
        return [*(key for _, key in self.texts.values()), *self.tasks.values(), *filter(None, [self.decoding])]


def run_side_by_side(args: argparse.Namespace, console: Console, team: Team) -> None:
    """Measure what has not been measured before, show, record."""
    from selattn.cli._parts import kept_parts, write_whole
    from selattn.evaluation.subjects import Subject

    files = task_files(args)
    subjects = [Subject.parse(text, args.policy) for text in args.models]
    plans = [make_plan(args, subject, files, team) for subject in subjects]
    with kept_parts(args.record, [key for plan in plans for key in plan.keys], team, console) as parts:
        found = [evaluate(args, plan, files, team, parts) for plan in plans]
        if not team.leads:
            return
        if args.record:
            settings = {name: getattr(args, name) for name in ("split", "layout", "rows", "skip", "limit", "batch")}
            write_whole(args.record, {"settings": settings, "models": found}, args.seed)
            parts.remove()
            console.print(f"recorded in {args.record}", soft_wrap=True)
        show(found, console)


def task_files(args: argparse.Namespace) -> dict[str, Path | None]:
    """The tasks that are wanted, and the local file of each, or None for the hub."""
    if not args.tasks:
        return {}
    from selattn.evaluation.tasks import check_tasks, find_local

    tasks = check_tasks([name for names in args.tasks for name in names.split(",")])
    if args.data_dir is None:
        return dict.fromkeys(tasks)
    return dict(find_local(tasks, args.data_dir))


def make_plan(args: argparse.Namespace, subject: Subject, files: Mapping[str, Path | None], team: Team) -> Plan:
    """Everything that was asked for about one model, and what it depends on."""
    from selattn.cli._parts import text_key
    from selattn.evaluation.kv_size import kv_size
    from selattn.evaluation.subjects import check_context
    from selattn.models.summary import parameters_by_part
    from selattn.utils.inputs import digest

    loaded, described = subject.loaded, subject.description
    context = args.context or described.context
    check_context(subject.name, described, context)
    size = kv_size(described, context)
    model = {
        "fingerprint": loaded.fingerprint,
        "budgets": None if described.budgets is None else described.budgets.to_json(),
        "policy": described.policy,
    }
    about = {
        "model": subject.name,
        "fingerprint": model["fingerprint"],
        "parameters": sum(parameters_by_part(loaded.skeleton).values()),
        "context": context,
        "budgets": model["budgets"],
        "policy": model["policy"],
        "kv": {"held": size.held, "read": size.read, "mean": size.mean, "memory_factor": size.factor},
    }
    texts: dict[str, tuple[TextRows, Key]] = {}
    tasks: dict[str, Key] = {}
    if args.data or files:
        tokenizer = loaded.tokenizer  # says in one line if there is none, or another model's
    for name, text in texts_of(args).items():
        rows = text.rows(tokenizer, context, progress=team.leads)
        chosen = {"context": context, "rows": args.rows, "skip": args.skip, "batch": args.batch}
        texts[name] = rows, {"part": "text", **model, **chosen, **text_key(text, rows, args.rows, skipped(args))}
    for name, file in files.items():
        tasks[name] = {
            "part": "task",
            **model,
            "task": name,
            "tokenizer": digest(sorted(loaded.folder.glob("*token*"))),
            "questions": None if file is None else digest([file]),
            **{name: getattr(args, name) for name in ("limit", "batch", "seed")},
        }
    speed = {"part": "decoding", "gives": "quartiles", **model, "context": context, "seed": args.seed}
    decoding = speed if args.speed else None
    return Plan(subject, context, about, texts, tasks, decoding)


def evaluate(
    args: argparse.Namespace, plan: Plan, files: Mapping[str, Path | None], team: Team, parts: Parts
) -> dict[str, Any]:
    """Everything that was planned of one model, which is loaded only if something is left to measure."""
    import dataclasses
    import functools

    from selattn.evaluation.decoding import measure_decoding

    subject = plan.subject
    pruned: dict[str, Any] = {"budgets": subject.budgets, "policy": subject.policy}
    found = dict(plan.about)
    if plan.texts:
        found["text"] = {
            name: parts.get(key, functools.partial(text_loss, args, subject, name, rows, team))
            for name, (rows, key) in plan.texts.items()
        }
    if plan.tasks and team.leads:
        found["tasks"] = task_results(args, plan, files, parts)
    if plan.decoding and team.leads:
        found["decoding"] = parts.get(
            plan.decoding,
            lambda: dataclasses.asdict(measure_decoding(subject.loaded.model, plan.context, seed=args.seed, **pruned)),
            alone=True,
        )
    return found


def text_loss(args: argparse.Namespace, subject: Subject, text: str, rows: TextRows, team: Team) -> dict[str, Any]:
    """The log-perplexity on one text."""
    import math

    from selattn.evaluation import log_perplexity, make_batches
    from selattn.utils.progress import ProgressLine

    chosen = rows.take(args.rows, skipped(args))
    batches = make_batches(chosen, args.batch)
    with ProgressLine(f"{subject.name}: {text}", len(team.share(batches)) * args.batch, shown=team.leads) as line:
        loss = log_perplexity(subject.loaded.model, batches, subject.budgets, subject.policy, team, line.advance)
    tokens = sum(batch.tokens for batch in batches)
    return {
        "loss": loss,
        "perplexity": math.exp(loss) if loss < 700 else math.inf,
        "rows": len(chosen),
        "tokens": tokens,
    }


def task_results(
    args: argparse.Namespace,
    plan: Plan,
    files: Mapping[str, Path | None],
    parts: Parts,
) -> dict[str, Any]:
    """The tasks one by one; lm-eval shows a bar for each, and a line in front of it says whose it is."""
    import functools

    from rich.console import Console

    from selattn.evaluation.tasks import make_scorer, run_task

    console = Console(stderr=True, highlight=False)

    @functools.cache
    def scorer() -> Any:
        subject = plan.subject
        return make_scorer(
            subject.loaded.model, subject.loaded.tokenizer.hf, args.batch, subject.budgets, subject.policy
        )

    def measure(name: str) -> dict[str, Any]:
        asked = scorer()  # first: a model that cannot be read is one line
        console.print(f"{plan.subject.name}: {name}", soft_wrap=True, markup=False)
        return run_task(asked, name, files[name], args.limit, args.seed)

    return {name: parts.get(key, functools.partial(measure, name), alone=True) for name, key in plan.tasks.items()}


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
            low, high = speed["quartiles"]
            cells += [f"{speed['cache_bytes']:,}", f"{speed['full_bytes']:,}"]
            cells.append(f"{speed['tokens_per_second']:.1f} ({low:.1f} to {high:.1f})")
        table.add_row(one["model"], *cells)
    console.print(table)
    if "tasks" not in found[0]:
        return
    tasks = Table(title="multiple choice, % right ± standard error", title_justify="left")
    tasks.add_column("task (questions)")
    tasks.add_column("model", overflow="fold")
    for heading in ("accuracy", "normalised"):
        tasks.add_column(heading, justify="right", no_wrap=True)
    for name, first in found[0]["tasks"].items():
        tasks.add_section()
        for number, one in enumerate(found):
            label = "" if number else f"{name} ({first['questions']:,})"
            task = one["tasks"][name]
            cells = [percent(task[metric], task[f"{metric}_stderr"]) for metric in ("acc", "acc_norm")]
            tasks.add_row(label, one["model"], *cells)
    console.print(tasks)


def percent(share: float, error: float | None) -> str:
    """With its standard error; a single question has none."""
    return f"{100 * share:.1f}" + ("" if error is None else f" ± {100 * error:.1f}")
