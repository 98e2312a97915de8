"""Rows of N tokens over a token store: the paper's layout and packed rows, and the order in which they come.

Labels are not shifted, that is the model's part; a token without a loss has label -100. That is padding and every
<BOS>: nothing comes before it, or another document does.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from selattn.data.draws import check_seed, shuffled
from selattn.data.store import TokenStore
from selattn.data.task import IGNORE
from selattn.errors import SelattnError


class Rows(Dataset[dict[str, Tensor]]):
    """Rows of a store; both layouts derive from it."""

    def __init__(self, store: TokenStore, context: int) -> None:
        if context < 2:
            raise SelattnError(f"a context of {context} tokens leaves nothing to predict: give at least 2")
        if len(store.tokens) < context:
            raise SelattnError(
                f"the corpus is smaller than one context: {len(store.tokens)} tokens in {store.name}, "
                f"context {context}; give more text or a smaller context"
            )
        self.store, self.context, self.vocab_size = store, context, store.vocab_size

    def __len__(self) -> int:
        raise NotImplementedError

    def _check(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return index % len(self)


class DocumentRows(Rows):
    """The paper's layout: one document in each row, cut at the context size, padded on the right if it is shorter.

    Args:
        store: the documents.
        context: N.
    """

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        document = self.store[self._check(index)][: self.context]
        ids = np.full(self.context, self.store.pad_id, np.int64)
        ids[: len(document)] = document
        real = np.arange(self.context) < len(document)
        labels = np.where(real, ids, IGNORE)
        labels[0] = IGNORE
        return _tensors(input_ids=ids, labels=labels, attention_mask=real.astype(np.int64))


class PackedRows(Rows):
    """Documents one after another in rows that are always full; `position_ids` restart at each, which keeps them apart.

    A document that is cut by the end of a row continues in the next one as a piece of its own, with a <BOS> of its
    own: every sequence that the model sees begins with one, as the paper's do. So a row takes N - 1 tokens from the
    store and puts <BOS> in front, unless a document happens to begin there: then its <BOS> is the first of the N - 1,
    and the row is filled up with the first token of the next row, without a loss. Thus every token of the store but
    <BOS> has a loss in exactly one row; only those behind the last full row are left out.
    """

    def __init__(self, store: TokenStore, context: int) -> None:
        super().__init__(store, context)
        self._rows = (len(store.tokens) - 1) // (context - 1)

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start = self._check(index) * (self.context - 1)
        stop = start + self.context - 1
        borders: NDArray[np.int64] = self.store.offsets
        first, last = np.searchsorted(borders, [start, stop])
        whole = bool(borders[first] == start)  # a document begins exactly here
        begins = np.zeros(self.context, bool)
        begins[0] = True
        begins[borders[first:last] - start + (not whole)] = True
        if whole:
            ids = self.store.tokens[start : stop + 1].astype(np.int64)
        else:
            ids = np.concatenate([[self.store.bos_id], self.store.tokens[start:stop]]).astype(np.int64)
        labels = np.where(begins, IGNORE, ids)
        if whole:
            labels[-1] = IGNORE  # the filler
        place = np.arange(self.context)
        position_ids = place - np.maximum.accumulate(np.where(begins, place, 0))
        return _tensors(input_ids=ids, labels=labels, position_ids=position_ids)


class Shuffled(Dataset[dict[str, Tensor]]):
    """A dataset over and over again, each time in another order: sample i is a pure function of (seed, i).

    Sample i is in epoch i // len(rows). To be read in order, from the first or, on resume, from any other sample.

    Args:
        rows: what is shuffled.
        seed: of the order.
        size: samples in all, over as many epochs as that takes; None for one epoch.
    """

    def __init__(self, rows: Dataset[dict[str, Tensor]], seed: int, size: int | None = None) -> None:
        assert isinstance(rows, Sized)
        self.rows, self.seed, self.epoch_size = rows, check_seed(seed), len(rows)
        self.size = self.epoch_size if size is None else size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not -self.size <= index < self.size:
            raise IndexError(f"sample {index} of {self.size}")
        epoch, place = divmod(index % self.size, self.epoch_size)
        return self.rows[shuffled(place, self.epoch_size, self.seed, epoch)]

    @property
    def vocab_size(self) -> int:
        """How many tokens the vocabulary of the rows has."""
        return self.rows.vocab_size  # type: ignore[attr-defined]

    @property
    def context(self) -> int:
        """How many tokens the longest row may have."""
        return self.rows.context  # type: ignore[attr-defined]


def check_vocabulary(dataset: Any, model_config: Any) -> None:
    """Raise unless the `vocab_size` of the model is that of the dataset, or that rounded up to a multiple of 128.

    A model with too few tokens would fail at the first large id; one with far too many has had another tokenizer.
    """
    tokens, known = dataset.vocab_size, model_config.vocab_size
    if not tokens <= known <= -(-tokens // 128) * 128:
        raise SelattnError(
            f"the data has a vocabulary of {tokens} tokens and the model one of {known}: "
            "use the tokenizer that the model was trained with, or a model made for this one"
        )


def _tensors(**columns: NDArray[Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(column) for name, column in columns.items()}
