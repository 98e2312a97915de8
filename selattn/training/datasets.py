"""From the data settings of a run to rows: one for each sample of the training, and sets to evaluate on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor
from torch.utils.data import Dataset

from selattn.data import (
    DocumentRows,
    PackedRows,
    Shuffled,
    SpanSamples,
    Task,
    TextRows,
    Tokenizer,
    TokenStore,
    VariableAssignment,
    read_tokenizer,
    sentinels_of,
    store_for,
    tokenizer_for,
    with_sentinels,
)
from selattn.errors import SelattnError
from selattn.training.config import RunConfig, SpanData, TextData

Rows = Dataset[dict[str, Tensor]]

# Samples of a task to evaluate on come from seeds that no run can have.
_VALIDATION, _OUT_OF_DISTRIBUTION = 2**64 - 1, 2**64 - 2


@dataclass(frozen=True)
class Data:
    """What a run trains and evaluates on.

    Attributes:
        train: a row for each sample of the run, in their order.
        validation: the sets to evaluate on, by name; the first is "validation".
        task: the task, which measures accuracy; None for text.
        tokenizer: of text; None for a task.
        checksums: of the tokens of each split of a text; empty for a task, which its settings and the seed decide.
    """

    train: Rows
    validation: Mapping[str, Rows]
    task: Task | None = None
    tokenizer: Tokenizer | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)


def prepare(run: RunConfig, tokenizer: Tokenizer | None = None, progress: bool = False) -> Data:
    """The data of a run. `tokenizer` is what text is read with if the run names none."""
    if isinstance(run.data, TextData):
        return _text(run, run.data, tokenizer, progress)
    return _task(run, run.data)


def _task(run: RunConfig, task: Task) -> Data:
    """Samples are random as they are, so none is drawn twice and nothing is shuffled."""
    rows = run.evaluation.rows
    validation = {"validation": task.dataset(_VALIDATION, rows)}
    if isinstance(task, VariableAssignment) and task.values > 2:  # the paper tests with 2 values
        validation["out_of_distribution"] = task.out_of_distribution().dataset(_OUT_OF_DISTRIBUTION, rows)
    return Data(task.dataset(run.seed, _samples(run)), validation, task=task)


def _text(run: RunConfig, text: TextData, tokenizer: Tokenizer | None, progress: bool) -> Data:
    """Token stores, made at the first time; each pass over the rows has an order of its own."""
    reading = text.reading()
    if text.tokenizer is not None:
        tokenizer = read_tokenizer(text.tokenizer)
    elif tokenizer is None:
        tokenizer = tokenizer_for(text.source, text.vocabulary, reading, progress=progress)
    if text.tokenizer is not None and tokenizer.vocab_size != text.vocabulary:
        raise SelattnError(
            f"{text.tokenizer} has {tokenizer.vocab_size} tokens and data.vocabulary is {text.vocabulary}: "
            f"set data.vocabulary={tokenizer.vocab_size}"
        )
    stores = {
        split: store_for(text.source, tokenizer, split, reading, progress=progress) for split in ("train", "validation")
    }
    checksums = {split: store.checksum for split, store in stores.items()}
    if isinstance(text, SpanData):
        return _spans(run, text, stores, with_sentinels(tokenizer), checksums)
    layout = DocumentRows if text.layout == "documents" else PackedRows
    train, validation = (layout(store, text.context) for store in stores.values())
    return Data(
        Shuffled(train, run.seed, _samples(run)), {"validation": validation}, tokenizer=tokenizer, checksums=checksums
    )


def _spans(
    run: RunConfig, data: SpanData, stores: Mapping[str, TokenStore], tokenizer: Tokenizer, checksums: dict[str, str]
) -> Data:
    """Span corruption: other noise in each pass over the training rows, and the same one whenever it is evaluated."""
    spans = data.spans()
    train, validation = (TextRows(store, spans.tokens) for store in stores.values())
    marks = (sentinels_of(tokenizer), tokenizer.eos_id)
    return Data(
        SpanSamples(train, spans, *marks, run.seed, _samples(run)),
        {"validation": SpanSamples(validation, spans, *marks, _VALIDATION)},
        tokenizer=tokenizer,
        checksums=checksums,
    )


def _samples(run: RunConfig) -> int:
    return run.schedule.steps * run.batch.size
