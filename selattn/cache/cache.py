"""The cache of a whole model: one layer of slots for each of its layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from selattn.cache.budgets import Budgets
from selattn.cache.layer import SlotLayer
from selattn.cache.policies import Policy, make_policy
from selattn.errors import SelattnError


class SelectiveCache(Cache):
    """Keeps, in layer l, at most K_l tokens, with F: what a selective model needs to go on from a text.

    transformers' own caches hold keys and values only. Under a selective model F would then begin at 0 again with every
    step, and the text would be silently wrong.

    The rows are independent texts, each with its own length. A batch is all of them, or inside `only` some: a pool of
    `rows` serves texts that come and go, and adding or removing one costs the others nothing. To transformers they
    are a batch with padding on the left.

    Args:
        layers: how many layers the model has.
        budgets: K_l, one number or one for each layer; None keeps everything.
        policy: which token is evicted when a layer is full, a name of `selattn.cache.POLICIES` or a policy.
        rows: how many to reserve; None for as many as the first batch has.
    """

    layers: list[SlotLayer]  # type: ignore[assignment]  # transformers allows layers of any kind

    def __init__(
        self,
        layers: int,
        budgets: Budgets | int | Sequence[int] | None = None,
        policy: str | Policy = "selective",
        rows: int | None = None,
    ) -> None:
        self.budgets = Budgets.of(budgets)
        self.made_for: Any = None  # the arguments of a model's `new_cache`
        self.policy = make_policy(policy)
        each: Sequence[int | None] = [None] * layers
        if self.budgets is not None and self.policy.evicts:
            each = self.budgets.for_layers(layers)
        super().__init__(layers=[SlotLayer(budget, self.policy) for budget in each])
        if rows is not None:
            self.reserve(rows)

    def nbytes(self) -> int:
        """Bytes of all that the cache holds, storage that is still empty included."""
        self._settle()
        return sum(layer.pool.nbytes() for layer in self.layers if layer.pool is not None)

    def full_nbytes(self) -> int:
        """Bytes of the keys and values of all tokens so far, as a cache that drops nothing would hold them."""
        self._settle()
        total = 0
        for layer in self.layers:
            for x in () if layer.pool is None else (layer.pool.keys, layer.pool.values):
                total += x.shape[1] * x.shape[3] * x.element_size() * int(layer.storage.seen.sum())
        return total

    # -- rows ---------------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """The rows there are, empty ones included; 0 as long as the cache was not used and none are reserved."""
        self._settle()
        layer = self.layers[0]
        return layer.pool.rows if layer.pool is not None else layer.reserved or 0

    def reserve(self, rows: int) -> None:
        """Have at least this many rows: batches are named with `only` from now on, and texts come and go."""
        if rows < 1:
            raise SelattnError(f"reserve at least 1 row, not {rows}")
        self._settle()
        for layer in self.layers:
            layer.reserved = max(rows, self.rows)
            if layer.pool is not None and layer.pool.rows < rows:
                layer.pool = layer.pool.extended(rows)

    def clear_rows(self, rows: int | Sequence[int] | Tensor) -> None:
        """Empty some rows: the next tokens that they are given begin new texts."""
        index = self._index(rows)
        self._refuse_draft()
        for layer in self.layers:
            if layer.pool is not None:
                layer.pool.clear(index)

    def copy_rows(self, source: int | Sequence[int] | Tensor, target: int | Sequence[int] | Tensor) -> None:
        """Row target[i] becomes a copy of row source[i]: two texts that begin alike."""
        give, take = self._index(source), self._index(target)
        if len(give) != len(take):
            raise SelattnError(f"{len(take)} rows cannot become copies of {len(give)}")
        self._refuse_draft()
        for layer in self.layers:
            if layer.pool is not None:
                layer.pool.copy(give, take)

    @contextmanager
    def only(self, rows: int | Sequence[int] | Tensor) -> Iterator[None]:
        """A context in which the batch is these rows, in this order; the others are neither read nor changed."""
        index, before = self._index(rows), self.layers[0].rows
        everything = bool(torch.equal(index, torch.arange(self.rows)))
        if torch.equal(index, torch.arange(self.rows) if before is None else before):
            yield
            return
        self._refuse_draft()
        for layer in self.layers:
            layer.use(None if everything else index)
        try:
            yield
        finally:
            self._settle()
            for layer in self.layers:
                layer.use(before)

    # -- drafts -------------------------------------------------------------------------------------------------------

    @property
    def is_croppable(self) -> bool:
        """Drafts can be taken back, once `activate_past_recording` was called."""
        return True

    @contextmanager
    def drafting(self) -> Iterator[None]:
        """A context in which tokens can be taken back with `crop` or `roll_back`; what is left of them is final."""
        self.activate_past_recording()
        try:
            yield
        finally:
            for layer in self.layers:
                layer.crop(0)
                layer.record_past = False

    def roll_back(self, counts: Sequence[int] | Tensor) -> None:
        """Take back the last tokens of a draft, counts[i] of row i, and all that they selected and evicted.

        Padding counts as tokens do. Like `crop`, it makes final what is left.
        """
        remove = torch.as_tensor(counts, dtype=torch.int64, device="cpu")
        batch = self.layers[0].batch if self.rows else 0
        if remove.shape != (batch,) or bool((remove < 0).any()):
            raise SelattnError(f"roll_back wants a number of tokens for each of the {batch} rows, not {counts}")
        for layer in self.layers:
            if layer.entries is None:
                raise SelattnError("no draft is open: give tokens that may be taken back inside `drafting()`")
            layer.roll_back(remove)

    def _settle(self) -> None:
        for layer in self.layers:
            if layer.deferred is not None:
                layer.settle()

    def _refuse_draft(self) -> None:
        if any(layer.entries is not None for layer in self.layers):
            raise SelattnError("a draft is open, and its rows cannot be changed: crop it or roll it back first")

    def _index(self, rows: int | Sequence[int] | Tensor) -> Tensor:
        """The numbers of rows that exist, each once."""
        index = torch.as_tensor(rows, dtype=torch.int64, device="cpu").flatten()
        have = self.rows
        for row in index.tolist():
            if not 0 <= row < have:
                raise SelattnError(f"there is no row {row}: this cache holds {have}, counted from 0")
        if len(set(index.tolist())) < len(index):
            raise SelattnError(f"a row is named twice in {index.tolist()}")
        return index
