"""Models side by side: log-perplexity on texts, multiple choice, memory, and the speed of decoding.

    found = evaluate(["zoo:memory", Subject.of("zoo:memory", 64, "h2o")], "embedded", rows=32)
    found.models[0].text["embedded"].loss

With a record an evaluation can be interrupted at any time: the same call resumes it and measures what is missing.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from selattn.evaluation.losses import log_perplexity, make_batches
from selattn.evaluation.speed import Decoding, measure_decoding
from selattn.evaluation.subjects import KVSize, Subject, check_context, kv_size
from selattn.evaluation.tasks import TaskResult, find_tasks, make_scorer, run_task
from selattn.evaluation.text import Data, Searched, Text, TextRows, named_texts, skip_name, text_key
from selattn.models.loading import Loaded
from selattn.models.protocols import LanguageModel
from selattn.models.summary import parameters_by_part
from selattn.utils.distributed import Team
from selattn.utils.files import digest
from selattn.utils.journal import Key, Parts, parts_of
from selattn.utils.progress import Progress
from selattn.utils.typed import if_any

Model = str | Path | Subject | Loaded | LanguageModel
Models = Model | Sequence[Model]


@dataclass(frozen=True)
class TextResult:
    """Log-perplexity on a text: nats per token, and exp of that."""

    loss: float
    perplexity: float
    rows: int
    tokens: int  # that were predicted


@dataclass(frozen=True)
class Evaluated:
    """All results of one model, as a record has them. Results on texts and tasks are by name."""

    model: str  # as the user wrote it
    fingerprint: str  # of its weights and config
    parameters: int
    context: int
    budgets: int | tuple[int, ...] | None  # one number for all layers, or K_l; None for no limit
    policy: str
    kv: KVSize
    text: dict[str, TextResult] = if_any(default_factory=dict)
    tasks: dict[str, TaskResult] = if_any(default_factory=dict)
    decoding: Decoding | None = if_any(default=None)


@dataclass(frozen=True)
class Settings:
    """How texts and tasks were read; None for `split` and `layout` without a text, and for "all" below."""

    split: str | None
    layout: str | None
    rows: int | None
    skip: int | str  # rows that were left out, or the folder of the search that had them
    limit: int | None
    batch: int


@dataclass(frozen=True)
class Comparison:
    """The record of `selattn eval`; models in the order in which they were named."""

    settings: Settings
    models: tuple[Evaluated, ...]


@dataclass(frozen=True)
class Request:
    """The checked arguments of `evaluate`. A task's file is None for the hub."""

    texts: Mapping[str, Text]
    tasks: Mapping[str, Path | None]
    speed: bool = False
    rows: int | None = None
    skip: int | Searched = 0
    limit: int | None = None
    context: int | None = None
    batch: int = 8
    seed: int = 0


@dataclass(frozen=True)
class Plan:
    """The measurements of a model, each with a key of all that its result depends on. Loads no weights."""

    subject: Subject
    about: Evaluated  # without results
    texts: dict[str, tuple[TextRows, Key]]
    tasks: dict[str, Key]
    decoding: Key | None

    @property
    def keys(self) -> list[Key]:
        """In the order in which the parts are measured."""
        return [*(key for _, key in self.texts.values()), *self.tasks.values(), *filter(None, [self.decoding])]


def evaluate(
    models: Models,
    data: Data = (),
    *,
    tasks: Sequence[str] = (),
    data_dir: str | Path | None = None,
    speed: bool = False,
    policy: str | None = None,
    rows: int | None = None,
    skip: int | Searched = 0,
    limit: int | None = None,
    context: int | None = None,
    batch: int = 8,
    seed: int = 0,
    record: str | Path | None = None,
    progress: Progress | None = None,
    team: Team | None = None,
) -> Comparison:
    """Measure models side by side.

    Args:
        models: one or several: a folder or zoo:NAME, a model itself (`selattn.load(model, tokenizer)`), and with
            budgets `Subject.of(model, budgets, policy)`.
        data: texts for the log-perplexity: sources as `selattn.data.documents` takes them, or `Text` objects, one,
            several, or by name.
        tasks: multiple choice by name, `all` for all of them.
        data_dir: local files of the tasks; None for the hub.
        speed: measure the bytes of the cache, and tokens per second.
        policy: eviction policy of models that have budgets and name no policy.
        rows: of each text; None for all.
        skip: leave out the rows that a search has seen: their number, or the search (`selattn.pruning.searched`).
        limit: questions of each task; None for all.
        context: N; None for the context size of each model.
        batch: rows at a time.
        seed: of the tokens that are decoded, and of lm-eval.
        record: file of the record; until it is written, finished parts are stored next to it.
        progress: shows the progress; None shows nothing.
        team: the processes that share the work; None for those that torchrun has started.
    """
    progress = progress or Progress()
    request = Request(named_texts(data), find_tasks(tasks, data_dir), speed, rows, skip, limit, context, batch, seed)
    listed: Sequence[Model] = models if isinstance(models, list | tuple) else [models]  # type: ignore[list-item]
    subjects = [Subject.of(each, policy=policy) for each in listed]
    with contextlib.ExitStack() as stack:
        team = team or stack.enter_context(contextlib.closing(Team()))
        for subject in subjects:  # all of them before a text of the first is read
            check_context(subject.name, subject.loaded, request.context or subject.description.context)
        plans = [make_plan(subject, request, team.leads and progress.shows) for subject in subjects]
        keys = [key for plan in plans for key in plan.keys]
        parts = stack.enter_context(parts_of(record, keys, team, progress))
        first = next(iter(request.texts.values()), None)
        split, layout = (None, None) if first is None else (first.split, first.layout)
        settings = Settings(split, layout, rows, skip_name(skip), limit, batch)
        found = Comparison(settings, tuple(_measure(plan, request, team, parts, progress) for plan in plans))
        parts.write(found, seed)
    return found


def make_plan(subject: Subject, request: Request, progress: bool = False) -> Plan:
    """Everything that was requested, for one model; tokenizes texts that the cache does not have."""
    loaded, described = subject.loaded, subject.description
    context = request.context or described.context
    budgets = None if described.budgets is None else described.budgets.to_json()
    about = Evaluated(
        model=subject.name,
        fingerprint=loaded.fingerprint,
        parameters=sum(parameters_by_part(loaded.skeleton).values()),
        context=context,
        budgets=tuple(budgets) if isinstance(budgets, list) else budgets,
        policy=subject.policy_name,
        kv=kv_size(described, context),
    )
    model = {"fingerprint": about.fingerprint, "budgets": budgets, "policy": about.policy}
    texts: dict[str, tuple[TextRows, Key]] = {}
    tasks: dict[str, Key] = {}
    if request.texts or request.tasks:
        tokenizer = loaded.tokenizer  # raises if there is none, or another model's
    for name, text in request.texts.items():
        rows = text.rows(tokenizer, context, progress=progress)
        chosen = {"context": context, "rows": request.rows, "skip": skip_name(request.skip), "batch": request.batch}
        key = text_key(text, rows, request.rows, request.skip)
        texts[name] = rows, {"part": "text", **model, **chosen, **key}
    for name, file in request.tasks.items():
        tasks[name] = {
            "part": "task",
            **model,
            "task": name,
            "tokenizer": tokenizer.fingerprint,
            "questions": None if file is None else digest([file]),
            **{name: getattr(request, name) for name in ("limit", "batch", "seed")},
        }
    speed = {"part": "decoding", "gives": "quartiles", **model, "context": context, "seed": request.seed}
    return Plan(subject, about, texts, tasks, speed if request.speed else None)


def _measure(plan: Plan, request: Request, team: Team, parts: Parts, progress: Progress) -> Evaluated:
    """Carry out a plan; the model's weights are loaded only if a part is missing."""
    subject = plan.subject
    pruned: Any = {"budgets": subject.budgets, "policy": subject.policy}
    texts = {
        name: parts.get(key, TextResult, functools.partial(_text, plan, request, name, team, progress))
        for name, (_, key) in plan.texts.items()
    }
    tasks: dict[str, TaskResult] = {}
    decoding: Decoding | None = None
    if team.leads:

        @functools.cache
        def scorer() -> Any:
            return make_scorer(subject.loaded.model, subject.loaded.tokenizer.hf, request.batch, **pruned)

        def ask(name: str) -> TaskResult:
            asked = scorer()  # before anything is shown: a model that cannot be read is one line
            progress.say(f"{subject.name}: {name}")  # lm-eval has a bar of its own
            return run_task(asked, name, request.tasks[name], request.limit, request.seed)

        def decode() -> Decoding:
            return measure_decoding(subject.loaded.model, plan.about.context, seed=request.seed, **pruned)

        for name, key in plan.tasks.items():
            tasks[name] = parts.get(key, TaskResult, functools.partial(ask, name), alone=True)
        if plan.decoding is not None:
            decoding = parts.get(plan.decoding, Decoding, decode, alone=True)
    return replace(plan.about, text=texts, tasks=tasks, decoding=decoding)


def _text(plan: Plan, request: Request, name: str, team: Team, progress: Progress) -> TextResult:
    subject, (rows, _) = plan.subject, plan.texts[name]
    chosen = rows.take(request.rows, request.skip)
    batches = make_batches(chosen, request.batch)
    progress.begin(sum(len(batch.input_ids) for batch in team.share(batches)), f"{subject.name}: {name}")
    loss = log_perplexity(subject.loaded.model, batches, subject.budgets, subject.policy, team, progress.advance)
    progress.end()
    perplexity = math.exp(loss) if loss < 700 else math.inf
    return TextResult(loss, perplexity, len(chosen), sum(batch.tokens for batch in batches))
