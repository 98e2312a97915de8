"""A synthetic task: endless samples without a state, a vocabulary that people can read, exact accuracy.

Shapes: B samples, N tokens in a row, V tokens in the vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from selattn.data.draws import Draw, check_seed
from selattn.errors import SelattnError

SAMPLE = "sample.txt"  # beside a model: a text that it can read
IGNORE = -100  # a label that has no loss, as in transformers


@dataclass(frozen=True)
class Task(ABC):
    """A synthetic task and its settings; `dataset` draws samples."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def tokens(self) -> tuple[str, ...]:
        """The readable form of every token id."""

    @property
    @abstractmethod
    def context(self) -> int:
        """N, the length of every row."""

    @abstractmethod
    def rows(self, draw: Draw) -> dict[str, NDArray[np.int64]]:
        """`input_ids`, `labels` (not shifted: the model does that) and, if rows differ in length, `attention_mask`:
        each [B, N], made of nothing but the settings and the draws.
        """

    @property
    def vocab_size(self) -> int:
        """How many tokens the task's vocabulary has."""
        return len(self.tokens)

    def dataset(self, seed: int, size: int) -> TaskDataset:
        """Samples 0 .. size - 1 of a seed; a longer one begins with those of a shorter one."""
        return TaskDataset(self, seed, size)

    def render(self, input_ids: Tensor | Sequence[int]) -> str:
        """One row in readable tokens, separated by blanks."""
        tokens = self.tokens
        return " ".join(tokens[int(i)] for i in input_ids)

    def correct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """[B] bool: samples whose every labelled token is the likeliest one. logits [B, N, V], labels [B, N]."""
        guess, answer = logits[:, :-1].argmax(-1), labels[:, 1:]
        return ((guess == answer) | (answer == IGNORE)).all(-1)

    def shifted(self) -> Task | None:
        """The task to evaluate out of distribution, or None."""
        return None

    def save_reader(self, folder: Path) -> None:
        """Put a tokenizer and a sample beside a model, so that it is read like a language model."""
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        backend = Tokenizer(models.WordLevel({token: i for i, token in enumerate(self.tokens)}))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        marks = {f"{name}_token": f"<{name.upper()}>" for name in ("bos", "eos", "pad")}
        known = {name: token for name, token in marks.items() if token in self.tokens}
        PreTrainedTokenizerFast(tokenizer_object=backend, **known).save_pretrained(folder)
        row = self.dataset(0, 1)[0]
        ids = row["input_ids"][
            1 : int(row.get("attention_mask", torch.ones(self.context)).sum())
        ]  # <BOS> comes by itself
        (folder / SAMPLE).write_text(self.render(ids) + "\n", encoding="utf-8")

    def accuracy(self, logits: Tensor, labels: Tensor) -> float:
        """The fraction of correct samples."""
        return self.correct(logits, labels).double().mean().item()


class TaskDataset(Dataset[dict[str, Tensor]]):
    """Map-style samples of a task; sample i is a pure function of (seed, i)."""

    def __init__(self, task: Task, seed: int, size: int) -> None:
        if size < 1:
            raise SelattnError(f"a dataset needs at least one sample, not {size}")
        self.task, self.seed, self.size = task, check_seed(seed), size
        self.vocab_size, self.context = task.vocab_size, task.context

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Tensor]]:
        """Many at once, which is how torch's DataLoader asks for a batch."""
        wrong = [i for i in indices if not -self.size <= i < self.size]
        if wrong:
            raise IndexError(f"sample {wrong[0]} of {self.size}")
        rows = self.task.rows(Draw(self.seed, [i % self.size for i in indices]))
        columns = {name: torch.from_numpy(row).unbind() for name, row in rows.items()}
        return [{name: column[k] for name, column in columns.items()} for k in range(len(indices))]


def at_least(task: Task, **least: int) -> None:
    """One line for a setting that is too small."""
    for name, bound in least.items():
        if getattr(task, name) < bound:
            raise SelattnError(f"{task.name}: {name} must be at least {bound}, not {getattr(task, name)}")
