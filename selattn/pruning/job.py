"""From a model and a text to budgets in a folder: searched on some rows of the text, reported on others."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from selattn.cache import Budgets, Policy, policy_name
from selattn.data import Tokenizer
from selattn.errors import SelattnError
from selattn.evaluation.batches import Batch, make_batches
from selattn.evaluation.losses import log_perplexity
from selattn.evaluation.searches import SearchSettings, Step
from selattn.evaluation.subjects import BUDGETS, check_context
from selattn.evaluation.text import Searched, Text, TextRows
from selattn.models.loading import Loaded, load
from selattn.models.seam import LanguageModel
from selattn.pruning.path import append, begin, chosen, claimed, past_steps
from selattn.pruning.record import Counts
from selattn.pruning.search import Procedure, first_step, steps
from selattn.pruning.until import Until
from selattn.pruning.whole import make_trials
from selattn.utils.distributed import Team
from selattn.utils.progress import Progress


def shown(step: Step) -> str:
    """The factor, the loss, and the budgets if they are few."""
    budgets = f"  K {' '.join(map(str, step.budgets))}" if len(step.budgets) <= 12 else ""
    return f"{step.factor:.2f}x less  loss {step.loss:.4f}{budgets}"


@dataclass(frozen=True)
class Job:
    """A search and its report.

    Attributes:
        model: a folder, a run's folder, zoo:NAME, or what `load` gave for one.
        out: the folder of the search.
        text: what is searched on.
        rows: how many of its rows.
        until: where the search stops.
        procedure: how it proceeds.
        policy: who leaves when a layer is full.
        report: another text to report on; None for other rows of the same. If it turns out to be the same, it is
            other rows of it, too.
        report_rows: how many.
        batch: rows that are computed at a time.
    """

    model: str | Loaded
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
    """What came of a job.

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


def carry_out(job: Job, team: Team, progress: Progress) -> Pruned:
    """Search, or go on searching, and write the budgets."""
    loaded, context = load(job.model), job.procedure.context
    check_context(loaded.name, loaded.description, context)
    job.until.check_size(loaded.description.layers, context, job.procedure.smallest)
    tokenizer = loaded.tokenizer
    other = None if job.until.baseline is None else load(job.until.baseline)
    if other is not None:
        _check_baseline(other, loaded, context)
    rows = job.text.rows(tokenizer, context, progress=team.leads)
    batches, reported = make_sets(job, rows, tokenizer, progress=team.leads)
    with contextlib.ExitStack() as stack:
        team.by_one(lambda: stack.enter_context(claimed(job.out)))
        settings = _settings(job, loaded, rows)
        past = team.by_one(lambda: past_steps(job.out, settings))
        model = loaded.model
        baseline = None if other is None else log_perplexity(other.model, batches, team=team)
        until = job.until if baseline is None else replace(job.until, loss=min(baseline, job.until.loss))
        path = _search(job, model, batches, past, settings, until, team, progress)
        number, reached = chosen(path, until, context)
        best = path[number]
        found = {
            "unpruned": log_perplexity(model, reported, policy="none", team=team),
            "pruned": log_perplexity(model, reported, Budgets(best.budgets), job.policy, team),
        }
        if other is not None:
            found["baseline"] = log_perplexity(other.model, reported, team=team)
        if team.leads:
            notes = {"model": loaded.name, "policy": policy_name(job.policy), "context": context}
            notes |= {"memory_factor": best.factor, "search_loss": best.loss, "report": found}
            Budgets(best.budgets).save(job.out / BUDGETS, **notes)
    sizes = Counts(sum(batch.tokens for batch in batches), sum(batch.tokens for batch in reported))
    return Pruned(best, path, not reached, until.limit(path[0].loss), baseline, found, sizes)


def _search(
    job: Job,
    model: LanguageModel,
    batches: Sequence[Batch],
    past: list[Step],
    settings: SearchSettings,
    until: Until,
    team: Team,
    progress: Progress,
) -> list[Step]:
    """The path as far as the threshold; each iteration is on the disk before the next one begins."""
    layers, context = model.description.layers, job.procedure.context
    budgets = past[-1].budgets if past else (context,) * layers
    trials = make_trials(model, batches, budgets, job.policy, team)
    path = past or [first_step(trials)]
    if abs(trials.loss - path[-1].loss) > 1e-4 * path[-1].loss:
        raise SelattnError(
            f"{job.out} says that the loss was {path[-1].loss:.6f}, and it is {trials.loss:.6f}: "
            "the machine or the program has changed; search in another folder"
        )
    until.check_loss(path[0].loss)
    if not past and team.leads:
        begin(job.out, settings, path[0])
    last, sure = _last(job, layers)
    progress.begin(last, "iteration", len(path) - 1, sure=sure)
    for step in () if chosen(path, until, context)[1] else steps(trials, job.procedure, past=tuple(path)):
        path.append(step)
        if team.leads:
            append(job.out, step)
        progress.advance(1, shown(step))
        if chosen([path[0], step], until, context)[1]:
            break
    progress.end()
    return path


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


def _last(job: Job, layers: int) -> tuple[int, bool]:
    """The last iteration that is possible, and whether the search ends there: a threshold of the loss can end it."""
    until, procedure = job.until, job.procedure
    if until.baseline is not None or until.tolerance is not None or until.loss < math.inf:
        return procedure.iterations(layers), False
    return procedure.iterations(layers, max(until.tokens, layers * procedure.context / until.factor)), True


def _settings(job: Job, loaded: Loaded, rows: TextRows) -> SearchSettings:
    """What decides the path, and what model and text are called, which does not."""
    return SearchSettings(
        model=loaded.name,
        fingerprint=loaded.fingerprint,
        text=job.text,
        tokens=rows.checksum,
        rows=job.rows,
        batch=job.batch,
        policy=policy_name(job.policy),
        **dataclasses.asdict(job.procedure),
    )


def _check_baseline(other: Loaded, loaded: Loaded, context: int) -> None:
    """Losses can be compared only over the same tokens."""
    check_context(other.name, other.description, context)
    theirs, ours = other.tokenizer, loaded.tokenizer
    if theirs.fingerprint != ours.fingerprint:
        raise SelattnError(
            f"the baseline {other.name} has another vocabulary ({theirs.vocab_size} tokens) than {loaded.name} "
            f"({ours.vocab_size}): their losses cannot be compared"
        )
