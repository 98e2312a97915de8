"""Models side by side: log-perplexity on texts, multiple choice, memory, and the speed of decoding.

    found = evaluate(["zoo:memory", Subject.of("zoo:memory", 64, "h2o")], "embedded", rows=32)
    found.models[0].text["embedded"].loss

With a record an evaluation can be interrupted at any time: the same call goes on, and measures what is missing.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from selattn.evaluation.losses import log_perplexity, make_batches
from selattn.evaluation.results import KV, Comparison, Evaluated, Settings, TaskResult, TextResult
from selattn.evaluation.speed import Decoding, measure_decoding
from selattn.evaluation.subjects import Subject, check_context, kv_size
from selattn.evaluation.tasks import find_tasks, make_scorer, run_task
from selattn.evaluation.text import Data, Searched, Text, TextRows, named_texts, skip_name, text_key
from selattn.models.loading import Loaded
from selattn.models.seam import LanguageModel
from selattn.models.summary import parameters_by_part
from selattn.utils.distributed import Team
from selattn.utils.files import digest
from selattn.utils.journal import Key, Parts, kept_parts, write_whole
from selattn.utils.progress import Progress

Model = str | Path | Subject | Loaded | LanguageModel
Models = Model | Sequence[Model]


@dataclass(frozen=True)
class Request:
    """What is to be measured of each model.

    Attributes:
        texts: by the name that the record gives them.
        tasks: the file of each task; None for the hub.
        speed: whether decoding is measured.
        rows: of each text; None for all.
        skip: rows to leave out, or the search whose rows are left out.
        limit: questions of each task; None for all.
        context: N; None for the context size of each model.
        batch: rows at a time.
        seed: of tokens that are decoded, and of lm-eval.
    """

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
    """What is to be measured of a model, and what that depends on; no weights are loaded yet.

    Attributes:
        subject: the model.
        about: what is known of it without its weights.
        texts: the rows of each text, and what the loss on them depends on.
        tasks: what each task's result depends on.
        decoding: what the speed depends on; None if it is not wanted.
    """

    subject: Subject
    about: Evaluated
    texts: dict[str, tuple[TextRows, Key]]
    tasks: dict[str, Key]
    decoding: Key | None

    @property
    def keys(self) -> list[Key]:
        """The keys of all parts, in the order in which they are measured."""
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
    """Measure models side by side; returns what was found, and writes it if there is a place for it.

    Args:
        models: one or several: a folder or zoo:NAME, a model itself (`selattn.load(model, tokenizer)`), and with
            budgets `Subject.of(model, budgets, policy)`.
        data: texts for the log-perplexity: sources as `selattn.data.documents` takes them, or `Text` objects, one,
            several, or by name.
        tasks: multiple choice by name, `all` for all of them.
        data_dir: local files of the tasks; None for the hub.
        speed: measure the bytes of the cache, and tokens per second.
        policy: who leaves, for models with budgets that name no policy.
        rows: of each text; None for all.
        skip: leave out what a search has seen: one on so many rows, or `Searched` (see `selattn.pruning.searched`).
        limit: questions of each task; None for all.
        context: N; None for the context size of each model.
        batch: rows at a time.
        seed: of tokens that are decoded, and of lm-eval.
        record: where the record goes; meanwhile the parts that are done lie beside it.
        progress: is told what is measured, and how much of it is done; None shows nothing.
        team: the processes that share the work; None for those that torchrun has started.
    """
    progress = progress or Progress()
    request = Request(named_texts(data), find_tasks(tasks, data_dir), speed, rows, skip, limit, context, batch, seed)
    listed: Sequence[Model] = models if isinstance(models, list | tuple) else [models]  # type: ignore[list-item]
    subjects = [Subject.of(each, policy=policy) for each in listed]
    with contextlib.ExitStack() as stack:
        if team is None:
            team = stack.enter_context(contextlib.closing(Team()))
        for subject in subjects:  # all of them before a text of the first is read
            check_context(subject.name, subject.loaded, request.context or subject.description.context)
        plans = [make_plan(subject, request, team.leads and progress.shows) for subject in subjects]
        path = None if record is None else Path(record)
        keys = [key for plan in plans for key in plan.keys]
        parts = stack.enter_context(kept_parts(path, keys, team, progress))
        found = Comparison(_settings(request), tuple(_measure(plan, request, team, parts, progress) for plan in plans))
        if path is not None and team.leads:
            write_whole(path, found, seed)
            parts.remove()
    return found


def make_plan(subject: Subject, request: Request, progress: bool = False) -> Plan:
    """Everything that was asked for about one model, and what it depends on; texts are tokenized if need be."""
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
        kv=KV.of(kv_size(described, context)),
    )
    model = {"fingerprint": about.fingerprint, "budgets": budgets, "policy": about.policy}
    texts: dict[str, tuple[TextRows, Key]] = {}
    tasks: dict[str, Key] = {}
    if request.texts or request.tasks:
        tokenizer = loaded.tokenizer  # says in one line if there is none, or another model's
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
    """Everything that was planned of one model, which is loaded only if something is left to measure."""
    texts = {
        name: parts.get(key, TextResult, functools.partial(_text, plan, request, name, team, progress))
        for name, (_, key) in plan.texts.items()
    }
    tasks: dict[str, TaskResult] = {}
    decoding: Decoding | None = None
    if team.leads:
        scorer = functools.cache(lambda: _scorer(plan.subject, request.batch))
        for name, key in plan.tasks.items():
            ask = functools.partial(_task, scorer, plan, request, name, progress)
            tasks[name] = parts.get(key, TaskResult, ask, alone=True)
        if plan.decoding is not None:
            decoding = parts.get(plan.decoding, Decoding, lambda: _decoding(plan, request), alone=True)
    return replace(plan.about, text=texts, tasks=tasks, decoding=decoding)


def _text(plan: Plan, request: Request, name: str, team: Team, progress: Progress) -> TextResult:
    """The log-perplexity on one text."""
    subject, (rows, _) = plan.subject, plan.texts[name]
    chosen = rows.take(request.rows, request.skip)
    batches = make_batches(chosen, request.batch)
    progress.begin(sum(len(batch.input_ids) for batch in team.share(batches)), f"{subject.name}: {name}")
    loss = log_perplexity(subject.loaded.model, batches, subject.budgets, subject.policy, team, progress.advance)
    progress.end()
    perplexity = math.exp(loss) if loss < 700 else math.inf
    return TextResult(loss, perplexity, len(chosen), sum(batch.tokens for batch in batches))


def _scorer(subject: Subject, batch: int) -> Any:
    return make_scorer(subject.loaded.model, subject.loaded.tokenizer.hf, batch, subject.budgets, subject.policy)


def _task(scorer: Callable[[], Any], plan: Plan, request: Request, name: str, progress: Progress) -> TaskResult:
    """One task; lm-eval has a bar of its own."""
    asked = scorer()  # first: a model that cannot be read is one line
    progress.say(f"{plan.subject.name}: {name}")
    return run_task(asked, name, request.tasks[name], request.limit, request.seed)


def _decoding(plan: Plan, request: Request) -> Decoding:
    subject = plan.subject
    return measure_decoding(
        subject.loaded.model, plan.about.context, seed=request.seed, budgets=subject.budgets, policy=subject.policy
    )


def _settings(request: Request) -> Settings:
    text = next(iter(request.texts.values()), None)
    return Settings(
        split=None if text is None else text.split,
        layout=None if text is None else text.layout,
        rows=request.rows,
        skip=skip_name(request.skip),
        limit=request.limit,
        batch=request.batch,
    )
