"""A pretrained model learns to forget: training, control, table and search in one call.

converted = convert("llama-folder", "text.txt", "runs/forgetful")
converted.record.losses["original"], converted.record.losses["after"]
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transformers import set_seed

from selattn.cache import make_policy
from selattn.conversion.config import ConversionRun, conversion_run
from selattn.conversion.trainer import Converter, check_teacher, make_student, original_of
from selattn.errors import SelattnError, require
from selattn.evaluation.losses import Batch, count_tokens, log_perplexity, make_batches
from selattn.evaluation.text import Text, TextRows
from selattn.models.formats import change_config
from selattn.models.loading import Loaded, load
from selattn.models.protocols import LanguageModel
from selattn.pruning import Pruned, Until, prune
from selattn.training import folder as run_folder
from selattn.training import train
from selattn.training.config import TextData
from selattn.utils.distributed import Team
from selattn.utils.progress import Progress
from selattn.utils.records import as_body, check_folder, portable, portable_fields, read_body, write_record
from selattn.utils.typed import if_any, to_json

RECORD = "conversion.json"  # in the folder of the conversion

# The lines of the table, in their order.
ORIGINAL, UNTRAINED, AFTER, PRUNED, CONTROL = "original", "untrained", "after", "pruned", "control"
LINES = {
    ORIGINAL: "the original",
    UNTRAINED: "untrained, at full strength",
    AFTER: "after",
    PRUNED: "after, with budgets",
    CONTROL: "control: as much training, no selection",
}

CONTROL_FOLDER, SEARCH = "control", "search"  # in the folder of the conversion
EQUAL = "original"  # until where to prune: the loss of the original
SEARCH_ROWS = 32
SELECTIVE = "selective"  # the policy, unless another is named


@dataclass(frozen=True)
class Budgeted:
    """The result of the search for budgets.

    Attributes:
        until: where it was to stop, as `selattn prune` has it.
        budgets: K_l.
        memory_factor: layers * N / sum of K_l.
        at_floor: whether it ended because no layer could give more.
        search_rows: that were searched on; the losses of the record are those of other rows.
        policy: which token was evicted when a layer was full.
    """

    until: list[str]
    budgets: tuple[int, ...]
    memory_factor: float
    at_floor: bool
    search_rows: int
    policy: str = "selective"  # in records from before there was a choice


@dataclass(frozen=True)
class ConversionRecord:
    """The record of `selattn convert`.

    Attributes:
        run: the whole configuration, `ConversionRun.to_dict`.
        parameters: of the converted model.
        tokens: that it was trained on.
        rows: of the validation part that the losses are of.
        predicted: tokens of these rows that were predicted.
        losses: nats per token by the keys of `LINES`.
        kept: the fraction of the context that each layer still needs by M, after the training.
        budgeted: the result of a search; None without one.
    """

    run: dict[str, Any]
    parameters: int
    tokens: int
    rows: int
    predicted: int
    losses: dict[str, float]
    kept: list[float | None] | None = None
    budgeted: Budgeted | None = if_any(default=None)


@dataclass(frozen=True)
class Converted:
    """How a call of `convert` ended.

    Attributes:
        folder: which every command takes as a model.
        step: the last one taken, of the conversion or of its control.
        record: what was measured; None if the training was interrupted, and can be resumed.
    """

    folder: Path
    step: int
    record: ConversionRecord | None

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self.record is None


def convert(
    model: str | Path | Loaded,
    data: str | Path | TextData,
    out: str | Path,
    *,
    settings: Mapping[str, Any] | None = None,
    control: bool = False,
    prune: Until | Literal["original"] | None = None,
    policy: str | None = None,
    search_rows: int = SEARCH_ROWS,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Converted:
    """Make a pretrained model selective, train it to forget, and compare; `resume` continues what was interrupted.

    Args:
        model: a stock model, or a decoder of selattn that does not select, by name.
        data: the text to train on: a source as `selattn.data.documents` takes it, or how it is read.
        out: the folder: a training run, and afterwards a model for every command.
        settings: of the run by their dotted names, such as `{"schedule.steps": 1000, "conversion.epsilon": 0.1}`.
        control: also train as much without selection, to compare with.
        prune: search for budgets and put them into the model's config: until the loss of the "original" is reached, or
            another condition is met.
        policy: which token is evicted when a layer is full, in that search and by the config; None is "selective".
        search_rows: validation rows for that; the losses are those of others.
        resume: continue from the newest whole checkpoint.
        overwrite: delete what is in the folder and start over.
        progress: is told how trainings and search proceed; None shows nothing.
    """
    require("accelerate", "tensorboard")
    original, folder = original_of(model.name if isinstance(model, Loaded) else str(model)), Path(out)
    about = original.description
    text = data if isinstance(data, TextData) else str(data)
    run = conversion_run(original.name, text, about.context, settings or {}, original=original.fingerprint)
    until, evicts = _until(prune, original), _policy(policy, searched=prune is not None)
    if run.conversion.teacher is not None:
        check_teacher(load(run.conversion.teacher), original)
    if resume:
        _past(folder, original, until, evicts, search_rows, control)  # before the training, if it says no
    check_folder(folder)
    with contextlib.closing(Team()) as team:
        if not run_folder.finished(folder):
            Converter().check(run)
        bars = team.leads and progress is not None and progress.shows
        rows = _text(run).rows(original.tokenizer, run.data.context, progress=bars)
        batches = _batches(rows, run, 0 if until is None else search_rows)
        how: dict[str, Any] = {"progress": progress, "maker": Converter()}
        done = train(run, folder, resume=resume, overwrite=overwrite, **how)
        if done.interrupted:
            return Converted(folder, done.step, None)
        if control:
            beside = train(run.control(), folder / CONTROL_FOLDER, resume=True, **how)
            if beside.interrupted:
                return Converted(folder, beside.step, None)
        record = _past(folder, original, until, evicts, search_rows, control)
        if record is None:
            losses, budgeted = _losses(run, folder, original, control, batches, team), None
            if until is not None:
                pruned = _search(run, folder, until, evicts, search_rows, progress, team)
                after = load(folder / run_folder.MODEL).model
                losses[PRUNED] = log_perplexity(after, batches, pruned.budgets, evicts, team)
                words, step = until.words(), pruned.step
                budgeted = Budgeted(words, tuple(step.budgets), step.factor, pruned.at_floor, search_rows, evicts)
            assert done.record is not None
            measured = ConversionRecord(
                run=run.to_dict(),
                parameters=done.record.parameters,
                tokens=done.record.tokens,
                rows=sum(len(batch.input_ids) for batch in batches),
                predicted=count_tokens(batches),
                losses=losses,
                kept=done.record.evaluation["validation"].kept,
                budgeted=budgeted,
            )
            record = as_body(portable_fields(to_json(measured)), ConversionRecord)  # as it is read from its file
            if team.leads:
                write_record(folder / RECORD, record, run.seed)
        if record.budgeted is not None and team.leads:
            _put(folder, list(record.budgeted.budgets), record.budgeted.policy)
    return Converted(folder, done.step, record)


def _until(wanted: Until | str | None, original: Loaded) -> Until | None:
    if wanted is None or isinstance(wanted, Until):
        return wanted
    if wanted != EQUAL:
        raise SelattnError(f"prune must be {EQUAL!r} or an Until, such as Until(factor=2), not {wanted!r}")
    return Until(baseline=original.name)


def _policy(wanted: str | None, searched: bool) -> str:
    """The name of the policy, which has to be one that a config can hold."""
    if wanted is None:
        return SELECTIVE
    if not searched:
        raise SelattnError("policy would change nothing: without prune nothing is searched, and nothing is evicted")
    if not make_policy(wanted).evicts:
        raise SelattnError(f"the policy {wanted!r} drops nothing: there is nothing to search for")
    return wanted


def _put(folder: Path, budgets: list[int] | None, policy: str) -> None:
    """Budgets and policy into the config of the converted model."""
    change_config(folder / run_folder.MODEL, {"cache_budgets": budgets, "cache_policy": policy})


def _text(run: ConversionRun) -> Text:
    """The validation part of the text that is trained on."""
    assert isinstance(run.data, TextData)
    return Text(run.data.source, layout=run.data.layout, reading=run.data.reading())


def _batches(rows: TextRows, run: ConversionRun, searched: int) -> list[Batch]:
    """The rows that are compared on, none of which a search sees; checked before the training, not after it."""
    if searched:
        longest = make_batches(rows.take(searched), run.evaluation.batch)[0].longest
        if longest < run.data.context:
            raise SelattnError(
                f"the search would be on rows of at most {longest} tokens, and N is {run.data.context}: hold more of "
                "the text out (--validation), pack its documents (--layout packed), or take a smaller --context"
            )
    left = len(rows.numbers(skip=searched))  # fewer than the rest where a search would take longer rows first
    return make_batches(rows.take(min(run.evaluation.rows, left), skip=searched), run.evaluation.batch)


def _losses(
    run: ConversionRun, folder: Path, original: Loaded, control: bool, batches: Sequence[Batch], team: Team
) -> dict[str, float]:
    """The losses of all lines of the table but the one with budgets."""

    def loss(model: LanguageModel) -> float:
        return log_perplexity(model, batches, policy="none", team=team)

    set_seed(run.seed)  # as at the beginning of the training: the same new form
    losses = {ORIGINAL: loss(original.model), UNTRAINED: loss(make_student(run).to(original.model.device).eval())}
    losses[AFTER] = loss(load(folder / run_folder.MODEL).model)
    if control:
        losses[CONTROL] = loss(load(folder / CONTROL_FOLDER / run_folder.MODEL).model)
    return losses


def _search(
    run: ConversionRun, folder: Path, until: Until, policy: str, rows: int, progress: Progress | None, team: Team
) -> Pruned:
    """Budgets for the converted model, found by `selattn prune` on other rows than those that are compared on."""
    context = run.data.context
    team.by_one(lambda: _put(folder, None, SELECTIVE))  # else an earlier search could not resume
    return prune(
        str(folder / run_folder.MODEL),
        _text(run),
        until,
        out=folder / SEARCH / policy,
        rows=rows,
        report_rows=1,
        step=max(8, context // 32),
        lazy=True,
        policy=policy,
        context=context,
        batch=run.evaluation.batch,
        progress=progress,
        team=team,
    )


def _past(
    folder: Path, original: Loaded, until: Until | None, policy: str, rows: int, control: bool
) -> ConversionRecord | None:
    """The record of an earlier call, if it has all that is asked for now."""
    if not (folder / RECORD).exists():
        return None
    record = read_body(folder / RECORD, ConversionRecord)
    there, compared = record.budgeted, CONTROL in record.losses or not control
    if until is None:
        if there is not None and not compared:  # on other rows than those that were searched on
            raise SelattnError(f"{folder} has budgets: give prune again ({', '.join(there.until)}) beside the control")
        return record if compared else None
    words = until.words()
    if until.baseline == original.name:  # a record names it without its folder; another baseline must be the same word
        words = list(map(portable, words))
    same = there is not None and (there.until, there.policy, there.search_rows) == (words, policy, rows)
    return record if same and compared else None
