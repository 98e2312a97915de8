"""How few tokens each layer may keep: the search in one call, with its record and a model that has the budgets.

found = prune("zoo:memory", "embedded", until="tolerance=0.01", out="runs/prune/memory")
found.budgets, found.step.factor, found.reported["pruned"]
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path

from selattn.cache import Policy, import_policy, make_policy, policy_name
from selattn.errors import SelattnError
from selattn.evaluation.searches import PATH, SETTINGS
from selattn.evaluation.subjects import BUDGETS
from selattn.evaluation.text import Text
from selattn.models.loading import Loaded, load
from selattn.models.seam import LanguageModel
from selattn.pruning.job import Job, Pruned, carry_out
from selattn.pruning.record import Counts, SearchRecord
from selattn.pruning.search import STEP, Procedure
from selattn.pruning.until import Until, parse_until
from selattn.utils.distributed import Team
from selattn.utils.folders import make_folder
from selattn.utils.progress import Progress
from selattn.utils.records import check_new_folder, check_output, write_record

RECORD, FIGURE = "record.json", "path.png"


def prune(
    model: str | Path | Loaded | LanguageModel,
    data: str | Path | Text,
    until: str | Sequence[str] | Until,
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
    """Search for budgets on some rows of a text, and report on others; the same call goes on if it was interrupted.

    Args:
        model: a folder, a run's folder, zoo:NAME, or a model itself (`selattn.load(model, tokenizer)`).
        data: what to search on: a source as `selattn.data.documents` takes it, or a `Text`.
        until: where to stop, see `selattn.pruning.until`; of several conditions the first that is met.
        out: the folder of the search, where budgets.json, the path and record.json go; by default runs/prune/MODEL.
        rows: to search on.
        report: what to report on; None for other rows of `data`.
        report_rows: how many.
        step: C, the tokens that a layer gives at a time.
        floor: go on, one token at a time, down to so many; None ends where no layer can give C and keep C.
        lazy: evaluate only layers that can still win.
        policy: who leaves when a layer is full, a name or a policy.
        context: N; None for the model's context size.
        batch: rows at a time.
        record: where the record goes, too.
        save_model: a folder for a copy of the model with the budgets in its config.
        progress: is told of each iteration; None shows nothing.
        team: the processes that share the work; None for those that torchrun has started.
    """
    loaded = load(model)
    wanted = until if isinstance(until, Until) else parse_until([until] if isinstance(until, str) else until)
    job = Job(
        model=loaded,
        out=default_folder(loaded.name) if out is None else Path(out),
        text=data if isinstance(data, Text) else Text(str(data)),
        rows=rows,
        until=wanted,
        procedure=Procedure(context or loaded.description.context, step, floor, lazy),
        policy=policy,
        report=report if report is None or isinstance(report, Text) else Text(str(report)),
        report_rows=report_rows,
        batch=batch,
    )
    also, copy = (None if path is None else Path(path) for path in (record, save_model))
    _check(job, also, copy)
    if copy is not None:
        loaded.check_saving()
    with contextlib.ExitStack() as stack:
        if team is None:
            team = stack.enter_context(contextlib.closing(Team()))
        found = carry_out(job, team, progress or Progress())
        if team.leads:
            whole = record_of(job, found, loaded, team.size)
            for path in filter(None, (job.out / RECORD, also)):
                write_record(path, whole, seed=job.text.seed)
            if copy is not None:
                make_folder(copy, lambda part: loaded.save_pruned(part, found.budgets, policy_name(policy)))
    return found


def default_folder(model: str) -> Path:
    """Where a search goes unless it is told: `runs/prune/MODEL`."""
    return Path("runs/prune") / model.removeprefix("zoo:").strip("/").replace("/", "-")


def record_of(job: Job, found: Pruned, loaded: Loaded, processes: int) -> SearchRecord:
    """What was searched and found, with the whole path."""
    return SearchRecord(
        model=loaded.name,
        training_seed=loaded.training_seed,
        until=job.until.words(),
        policy=policy_name(job.policy),
        procedure=job.procedure,
        text=job.text,
        report_text=job.report,
        rows=Counts(job.rows, job.report_rows),
        processes=processes,
        budgets=found.step.budgets,
        iteration=found.step.iteration,
        memory_factor=found.step.factor,
        at_floor=found.at_floor,
        search_loss=found.step.loss,
        search_limit=found.limit if found.limit < math.inf else None,
        search_baseline=found.baseline,
        report=found.reported,
        tokens=found.tokens,
        path=found.path,
    )


def _check(job: Job, record: Path | None, save_model: Path | None) -> None:
    """Whether there is something to search for, and all can be written: before the search rather than after it."""
    policy, called = import_policy(job.policy), policy_name(job.policy)
    if not policy.evicts:
        raise SelattnError(f"the policy {called!r} drops nothing: there is nothing to search for")
    check_output(record)
    for name in (FIGURE, PATH, SETTINGS, BUDGETS):
        if record is not None and record.absolute() == (job.out / name).absolute():
            raise SelattnError(f"the record would take the place of the search's {record}: give it another name")
    if save_model is None:
        return
    if not _has_name(policy):
        raise SelattnError(f"a saved config names built-in policies only, not {called}: leave --save-model out")
    check_new_folder(save_model)
    if save_model.absolute() == job.out.absolute():
        raise SelattnError(f"--save-model and --out are both {job.out}: give the model a folder of its own")


def _has_name(policy: Policy) -> bool:
    """Whether a name stands for exactly this policy, so that a config can hold it."""
    with contextlib.suppress(SelattnError):
        return make_policy(policy.name) == policy
    return False
