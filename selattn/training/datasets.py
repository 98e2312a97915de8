"""From the data settings of a run to rows: which make up which step, and sets to evaluate on.

The samples of a run are numbered from its beginning to its end, shuffled or not. Step s takes the samples s * B to
(s + 1) * B - 1, B being the global batch, so a run that resumes at step s starts there and neither skips nor repeats
one. Inside a step, micro batch m of device r takes the samples from (m * devices + r) * micro on: all devices together
take all of them, and no two the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor
from torch.utils.data import Dataset, Sampler

from selattn.data import (
    DocumentRows,
    PackedRows,
    Shuffled,
    Task,
    Tokenizer,
    TokenStore,
    read_tokenizer,
    store_for,
    tokenizer_for,
)
from selattn.errors import SelattnError
from selattn.training.config import RunConfig, TextData

Rows = Dataset[dict[str, Tensor]]

# Samples of a task to evaluate on come from seeds that no run can have.
VALIDATION, _OUT_OF_DISTRIBUTION = 2**64 - 1, 2**64 - 2


@dataclass(frozen=True)
class Data:
    """The rows that a run trains and evaluates on.

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

    def save_reader(self, folder: Path) -> None:
        """Save the tokenizer into a model's folder, and for a task a sample."""
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)
        if self.task is not None:
            self.task.save_reader(folder)


def prepare(run: RunConfig, tokenizer: Tokenizer | None = None, progress: bool = False) -> Data:
    """The data of a run. `tokenizer` is what text is read with if the run names none."""
    if isinstance(run.data, TextData):
        return _text(run, run.data, tokenizer, progress)
    return _task(run, run.data)


def _task(run: RunConfig, task: Task) -> Data:
    """Samples are random as they are, so none is drawn twice and nothing is shuffled."""
    rows = run.evaluation.rows
    validation = {"validation": task.dataset(VALIDATION, rows)}
    if (shifted := task.shifted()) is not None:
        validation["out_of_distribution"] = shifted.dataset(_OUT_OF_DISTRIBUTION, rows)
    return Data(task.dataset(run.seed, samples(run)), validation, task=task)


def _text(run: RunConfig, text: TextData, tokenizer: Tokenizer | None, progress: bool) -> Data:
    """Each pass over the training rows has an order of its own."""
    tokenizer, stores = stores_of(text, tokenizer, progress)
    layout = DocumentRows if text.layout == "documents" else PackedRows
    train, validation = (layout(store, text.context) for store in stores.values())
    return Data(
        Shuffled(train, run.seed, samples(run)),
        {"validation": validation},
        tokenizer=tokenizer,
        checksums={split: store.checksum for split, store in stores.items()},
    )


def stores_of(text: TextData, tokenizer: Tokenizer | None, progress: bool) -> tuple[Tokenizer, dict[str, TokenStore]]:
    """The tokenizer of a text and the store of each split, made when they are first asked for."""
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
    return tokenizer, stores


def samples(run: RunConfig) -> int:
    """How many rows the run takes, over all steps."""
    return run.schedule.steps * run.batch.size


@dataclass(frozen=True)
class Share:
    """One device's part of every step: `micro` samples, `accumulate` times."""

    micro: int
    accumulate: int
    rank: int = 0
    devices: int = 1

    def samples(self, step: int) -> Iterator[list[int]]:
        """The samples of each of its micro batches in a step."""
        for m in range(self.accumulate):
            first = ((step * self.accumulate + m) * self.devices + self.rank) * self.micro
            yield list(range(first, first + self.micro))


class StepBatches(Sampler[list[int]]):
    """The micro batches of one device from step `start` up to `steps`, for torch's DataLoader.

    Its length counts the whole run, not only the steps left: the Trainer derives from it how long a run is.
    """

    def __init__(self, share: Share, steps: int, start: int = 0) -> None:
        self.share, self.steps, self.start = share, steps, start

    def __len__(self) -> int:
        return self.steps * self.share.accumulate

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.start, self.steps):
            yield from self.share.samples(step)
