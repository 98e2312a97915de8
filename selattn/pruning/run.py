"""How few tokens each layer may keep: the search in one call, with its record and a model that has the budgets.

pruned = prune("zoo:memory", "embedded", Until(tolerance=0.01), out="runs/prune/memory")
pruned.budgets, pruned.step.factor, pruned.reported["pruned"]

It searches on some rows of a text, and reports on others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from selattn.cache import Budgets, Policy, import_policy, make_policy, policy_name
from selattn.cache.budgets import SMALLEST
from selattn.data import Tokenizer
from selattn.errors import SelattnError
from selattn.evaluation.losses import Batch, finite, log_perplexity, make_batches
from selattn.evaluation.subjects import BUDGETS, check_context
from selattn.evaluation.text import Searched, Text, TextRows
from selattn.models.forward import check_selects
from selattn.models.loading import Loaded, load
from selattn.models.protocols import LanguageModel
from selattn.pruning.folder import PATH, SETTINGS, SearchSettings, append, begin, claimed, past_steps
from selattn.pruning.search import STEP, Procedure, Step, Until, chosen, first_step, follow
from selattn.pruning.trials import make_trials
from selattn.utils.distributed import Team
from selattn.utils.files import make_folder
from selattn.utils.progress import Progress
from selattn.utils.records import check_folder, check_new_folder, check_output, write_record

RECORD, FIGURE = "record.json", "path.png"


@dataclass(frozen=True)
class Counts:
    """Of the two sets: rows, or tokens that were predicted."""

    search: int
    report: int


@dataclass(frozen=True, kw_only=True)
class SearchRecord:
    """The record of a search.

    Attributes:
        model: as the user wrote it.
        training_seed: that the model was trained with; None if that is not known.
        until: where the search was to stop, as the user wrote it.
        policy: which token is evicted when a layer is full.
        procedure: how the search proceeds.
        text: what was searched on.
        report_text: another text that was reported on; None for other rows of the same.
        rows: of both sets.
        processes: that shared the work.
        budgets: K_l that were chosen.
        iteration: of the path, whose budgets these are.
        memory_factor: layers * N / sum of K_l.
        at_floor: whether the search ended because no layer could give more.
        search_loss: with these budgets on the search set.
        search_limit: the largest loss that was allowed there; None without such a threshold.
        search_baseline: the loss of the baseline there; None without one.
        report: losses on the report set by name: `unpruned`, `pruned`, `baseline` if there is one.
        tokens: that were predicted, of both sets.
        path: all iterations.
    """

    model: str
    training_seed: int | None = None
    until: list[str]
    policy: str
    procedure: Procedure
    text: Text
    report_text: Text | None = None
    rows: Counts
    processes: int = 1
    budgets: tuple[int, ...]
    iteration: int
    memory_factor: float
    at_floor: bool
    search_loss: float
    search_limit: float | None
    search_baseline: float | None = None
    report: dict[str, float]
    tokens: Counts
    path: list[Step]


@dataclass(frozen=True)
class Job:
    """A search and its report; the fields are the arguments of `prune`, completed."""

    model: Loaded
    out: Path
    text: Text
    rows: int
    until: Until
    procedure: Procedure
    policy: str | Policy = "selective"
    report: Text | None = None
    report_rows: int = 64
    batch: int = 8


@dataclass(frozen=True)
class Pruned:
    """The result of a search.

    Attributes:
        step: the iteration whose budgets were chosen.
        path: all iterations.
        at_floor: whether the search ended because no layer could give more.
        limit: the largest loss that was allowed on the search set; infinite without such a threshold.
        baseline: the loss of the baseline on the search set, if there is one.
        reported: losses on the report set by name: `unpruned`, `pruned`, `baseline` if there is one.
        tokens: how many tokens were predicted in the search set and in the report set.
    """

    step: Step
    path: list[Step]
    at_floor: bool
    limit: float
    baseline: float | None
    reported: dict[str, float]
    tokens: Counts

    @property
    def budgets(self) -> Budgets:
        """K_l that were chosen."""
        return Budgets(self.step.budgets)


def prune(
    model: str | Path | Loaded | LanguageModel,
    data: str | Path | Text,
    until: Until,
    *,
    out: str | Path | None = None,
    rows: int = 32,
    report: str | Path | Text | None = None,
    report_rows: int = 64,
    step: int = STEP,
    floor: int | None = None,
    lazy: bool = False,
    policy: str | Policy = "selective",
    context: int | None = None,
    batch: int = 8,
    record: str | Path | None = None,
    save_model: str | Path | None = None,
    progress: Progress | None = None,
    team: Team | None = None,
) -> Pruned:
    """Search for budgets on some rows of a text, and report on others; the same call resumes an interrupted search.

    Args:
        model: a folder, a run's folder, zoo:NAME, or a model itself (`selattn.load(model, tokenizer)`).
        data: what to search on: a source as `selattn.data.documents` takes it, or a `Text`.
        until: where to stop; of several conditions the first that is met.
        out: the folder of the search, where budgets.json, the path and record.json go; by default runs/prune/MODEL.
        rows: to search on.
        report: what to report on; None for other rows of `data`.
        report_rows: how many.
        step: C, the tokens that a layer gives at a time.
        floor: continue, one token at a time, down to this many; None ends where no layer can give C and keep C.
        lazy: evaluate only layers that can still win.
        policy: which token is evicted when a layer is full, a name or a policy.
        context: N; None for the model's context size.
        batch: rows at a time.
        record: where the record goes, too.
        save_model: a folder for a copy of the model with the budgets in its config.
        progress: is told of each iteration; None shows nothing.
        team: the processes that share the work; None for those that torchrun has started.
    """
    loaded = load(model)
    if not isinstance(until, Until):
        raise SelattnError(f"until must be an Until, such as Until(tolerance=0.01), not {until!r}")
    job = Job(
        model=loaded,
        out=default_folder(loaded.name) if out is None else Path(out),
        text=data if isinstance(data, Text) else Text(str(data)),
        rows=rows,
        until=until,
        procedure=Procedure(context or loaded.description.context, step, floor, lazy),
        policy=policy,
        report=report if report is None or isinstance(report, Text) else Text(str(report)),
        report_rows=report_rows,
        batch=batch,
    )
    also, copy = (None if path is None else Path(path) for path in (record, save_model))
    _check(job, also, copy)
    with contextlib.ExitStack() as stack:
        if team is None:
            team = stack.enter_context(contextlib.closing(Team()))
        pruned = _carry_out(job, team, progress or Progress())
        if team.leads:
            for path in filter(None, (job.out / RECORD, also)):
                write_record(path, _record(job, pruned, team.size), seed=job.text.seed)
            if copy is not None:
                make_folder(copy, lambda part: loaded.save_pruned(part, pruned.budgets, policy_name(policy)))
    return pruned


def default_folder(model: str) -> Path:
    """Where a search goes unless it is told: `runs/prune/MODEL`."""
    return Path("runs/prune") / model.removeprefix("zoo:").strip("/").replace("/", "-")


def _check(job: Job, record: Path | None, save_model: Path | None) -> None:
    """Whether there is something to search for, and all can be written: before the search rather than after it."""
    policy, called = import_policy(job.policy), policy_name(job.policy)
    if not policy.evicts:
        raise SelattnError(f"the policy {called!r} drops nothing: there is nothing to search for")
    check_selects(Budgets(SMALLEST), policy, job.model.description.selects)
    check_folder(job.out)
    check_output(record)
    for name in (FIGURE, PATH, SETTINGS, BUDGETS):
        if record is not None and record.absolute() == (job.out / name).absolute():
            raise SelattnError(f"the record would take the place of the search's {record}: give it another name")
    if save_model is None:
        return
    named = False  # whether the name stands for exactly this policy, so that a config can hold it
    with contextlib.suppress(SelattnError):
        named = make_policy(policy.name) == policy
    if not named:
        raise SelattnError(f"a saved config names built-in policies only, not {called}: leave --save-model out")
    check_new_folder(save_model)
    if save_model.absolute() == job.out.absolute():
        raise SelattnError(f"--save-model and --out are both {job.out}: give the model a folder of its own")
    job.model.check_saving()


def _carry_out(job: Job, team: Team, progress: Progress) -> Pruned:
    loaded, context, until = job.model, job.procedure.context, job.until
    check_context(loaded.name, loaded, context)
    until.check_size(loaded.description.layers, context, job.procedure.smallest)
    other = None if until.baseline is None else _baseline(until.baseline, loaded, context)
    bars = team.leads and progress.shows
    rows = job.text.rows(loaded.tokenizer, context, progress=bars)
    batches, reported = make_sets(job, rows, loaded.tokenizer, progress=bars)
    with contextlib.ExitStack() as stack:
        team.by_one(lambda: stack.enter_context(claimed(job.out)))
        settings = SearchSettings(
            model=loaded.name,
            fingerprint=loaded.fingerprint,
            text=job.text,
            tokens=rows.checksum,
            rows=job.rows,
            batch=job.batch,
            policy=policy_name(job.policy),
            **dataclasses.asdict(job.procedure),
        )
        past = team.by_one(lambda: past_steps(job.out, settings))
        baseline = None if other is None else log_perplexity(other.model, batches, team=team)
        if baseline is not None:
            until = replace(until, loss=min(baseline, until.loss))
        path = _path(job, batches, past, settings, until, team, progress)
        number, reached = chosen(path, until, context)
        best = path[number]
        losses = {
            "unpruned": log_perplexity(loaded.model, reported, policy="none", team=team),
            "pruned": log_perplexity(loaded.model, reported, Budgets(best.budgets), job.policy, team),
        }
        if other is not None:
            losses["baseline"] = log_perplexity(other.model, reported, team=team)
        if team.leads:
            notes = {"model": loaded.name, "policy": policy_name(job.policy), "context": context}
            notes |= {"memory_factor": best.factor, "search_loss": best.loss, "report": losses}
            Budgets(best.budgets).save(job.out / BUDGETS, **notes)
    sizes = Counts(sum(batch.tokens for batch in batches), sum(batch.tokens for batch in reported))
    return Pruned(best, path, not reached, until.limit(path[0].loss), baseline, losses, sizes)


def _baseline(name: str, loaded: Loaded, context: int) -> Loaded:
    """The baseline, whose loss must be over the same tokens."""
    other = load(name)
    check_context(other.name, other, context)
    theirs, ours = other.tokenizer, loaded.tokenizer
    if theirs.fingerprint != ours.fingerprint:
        raise SelattnError(
            f"the baseline {other.name} has another vocabulary ({theirs.vocab_size} tokens) than {loaded.name} "
            f"({ours.vocab_size}): their losses cannot be compared"
        )
    return other


def make_sets(
    job: Job, rows: TextRows, tokenizer: Tokenizer, progress: bool = False
) -> tuple[list[Batch], list[Batch]]:
    """The search set and the report set."""
    context = job.procedure.context
    searched = make_batches(rows.take(job.rows), job.batch)
    if searched[0].longest < context:
        raise SelattnError(
            f"the search set is shorter than one context: its longest sequence has {searched[0].longest} tokens, "
            f"N is {context}; give longer documents (of a book: --separator file --layout packed), more --rows, or a "
            "smaller --context"
        )
    others = rows if job.report is None else job.report.rows(tokenizer, context, progress)
    # By the tokens, not by the name: one file can be named in several ways, and be cut into rows in several ways.
    seen = Searched(job.text, context, job.rows, rows.checksum)
    return searched, make_batches(others.take(job.report_rows, seen), job.batch)


def _path(
    job: Job,
    batches: Sequence[Batch],
    past: list[Step],
    settings: SearchSettings,
    until: Until,
    team: Team,
    progress: Progress,
) -> list[Step]:
    """The path as far as the threshold; each iteration is on the disk before the next one begins."""
    model = job.model.model
    budgets = past[-1].budgets if past else (job.procedure.context,) * model.description.layers
    trials = make_trials(model, batches, budgets, job.policy, team)
    finite(trials.loss)
    path = past or [first_step(trials)]
    if abs(trials.loss - path[-1].loss) > 1e-4 * path[-1].loss:
        raise SelattnError(
            f"{job.out} says that the loss was {path[-1].loss:.6f}, and it is {trials.loss:.6f}: "
            "the machine or the program has changed; search in another folder"
        )
    until.check_loss(path[0].loss)
    if not past and team.leads:
        begin(job.out, settings, path[0])
    write = functools.partial(append, job.out) if team.leads else None
    follow(trials, path, until, job.procedure, progress, write)
    return path


def _record(job: Job, pruned: Pruned, processes: int) -> SearchRecord:
    return SearchRecord(
        model=job.model.name,
        training_seed=job.model.training_seed,
        until=job.until.words(),
        policy=policy_name(job.policy),
        procedure=job.procedure,
        text=job.text,
        report_text=job.report,
        rows=Counts(job.rows, job.report_rows),
        processes=processes,
        budgets=pruned.step.budgets,
        iteration=pruned.step.iteration,
        memory_factor=pruned.step.factor,
        at_floor=pruned.at_floor,
        search_loss=pruned.step.loss,
        search_limit=pruned.limit if pruned.limit < math.inf else None,
        search_baseline=pruned.baseline,
        report=pruned.reported,
        tokens=pruned.tokens,
        path=pruned.path,
    )
