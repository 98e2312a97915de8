"""The cache of a whole model: one layer of slots for each of its layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from selattn.cache import rows as rows_of
from selattn.cache.budgets import Budgets
from selattn.cache.policies import Policy, make_policy
from selattn.cache.slots import SlotLayer
from selattn.errors import SelattnError


class SelectiveCache(Cache):
    """Keeps, in layer l, at most K_l tokens, with F: what a selective model needs to go on from a text.

    transformers' own caches hold keys and values only. Under a selective model F would then begin at 0 again with every
    step, and the text would be silently wrong.

    The rows of the batch are independent: each has its own length, and can be emptied, replaced, joined to others or
    left out of a step while the rest goes on. To transformers they are a batch with padding on the left.

    Args:
        layers: how many layers the model has.
        budgets: K_l, one number or one for each layer; None keeps everything.
        policy: who leaves when a layer is full, a name of `selattn.cache.POLICIES` or a policy.
    """

    layers: list[SlotLayer]  # type: ignore[assignment]  # transformers allows layers of any kind

    def __init__(
        self, layers: int, budgets: Budgets | int | Sequence[int] | None = None, policy: str | Policy = "selective"
    ) -> None:
        self.budgets = Budgets.of(budgets)
        self.policy = make_policy(policy)
        each: Sequence[int | None] = [None] * layers
        if self.budgets is not None and self.policy.evicts:
            each = self.budgets.for_layers(layers)
        super().__init__(layers=[SlotLayer(budget, self.policy) for budget in each])

    def nbytes(self) -> int:
        """Bytes of all that the cache holds, storage that is still empty included."""
        return sum(x.numel() * x.element_size() for layer in self.layers for x in layer.tensors().values())

    def full_nbytes(self) -> int:
        """Bytes of the keys and values of all tokens so far, as a cache that drops nothing would hold them."""
        total = 0
        for layer in self.layers:
            found = layer.tensors()
            for x in (found[name] for name in ("keys", "values") if name in found):
                total += x.shape[1] * x.shape[3] * x.element_size() * int(layer.seen.sum())
        return total

    # -- rows ---------------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """The rows of the batch, empty ones included; 0 as long as the cache was not used."""
        found = self.layers[0].tensors()
        return len(found["length"]) if found else 0

    def new_like(self) -> SelectiveCache:
        """An empty cache with the same budgets and policy."""
        return SelectiveCache(len(self.layers), self.budgets, self.policy)

    def clear_rows(self, rows: int | Sequence[int] | Tensor) -> None:
        """Empty some rows: the next tokens that they are given begin new texts. The others go on."""
        index = self._index(rows)
        for layer in self.layers:
            rows_of.clear(layer, index)

    def take_rows(self, rows: int | Sequence[int] | Tensor) -> SelectiveCache:
        """A new cache with copies of some rows, in the order in which they are named."""
        index = self._index(rows)
        taken = self.new_like()
        for mine, other in zip(taken.layers, self.layers, strict=True):
            rows_of.take(mine, index, other)
        return taken

    def insert(self, rows: int | Sequence[int] | Tensor, other: SelectiveCache) -> None:
        """Row rows[i] becomes a copy of row i of another cache of the same model, budgets and policy."""
        index = self._index(rows)
        self._same(other)
        if other.rows not in (0, len(index)):
            raise SelattnError(f"{len(index)} rows cannot take the {other.rows} rows of the other cache")
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            rows_of.insert(mine, index, theirs)

    def append(self, other: SelectiveCache) -> None:
        """Copies of the rows of another cache of the same model, budgets and policy, after the rows that are there."""
        self._same(other)
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            rows_of.append(mine, theirs)

    @contextmanager
    def only(self, rows: int | Sequence[int] | Tensor) -> Iterator[None]:
        """A context in which only these rows take part: the others keep what they have, whatever tokens they are given.

        What a model computes for a row that sits out means nothing.
        """
        active = torch.zeros(self.rows, dtype=torch.bool)
        active[self._index(rows)] = True
        self._set_active(None if bool(active.all()) else active)
        try:
            yield
        finally:
            self._set_active(None)

    @property
    def active(self) -> Tensor | None:
        """[B] bool on the CPU: the rows that take part, inside `only`; None: all."""
        return self.layers[0].active

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
        if remove.shape != (self.rows,) or bool((remove < 0).any()):
            raise SelattnError(f"roll_back wants a number of tokens for each of the {self.rows} rows, not {counts}")
        for layer in self.layers:
            if layer.entries is None:
                raise SelattnError("no draft is open: give tokens that may be taken back inside `drafting()`")
            layer.roll_back(remove)

    def _set_active(self, active: Tensor | None) -> None:
        for layer in self.layers:
            layer.active = active

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

    def _same(self, other: SelectiveCache) -> None:
        mine, theirs = ([layer.budget for layer in each.layers] for each in (self, other))
        if mine != theirs or self.policy != other.policy:
            raise SelattnError(
                f"one cache was made for the budgets {mine} and the policy {self.policy.name!r}, "
                f"the other for {theirs} and {other.policy.name!r}: make both alike, with new_like()"
            )
