"""Where the sequences of a batch begin: padding on either side, and several documents in one row.

A sequence is a row without its padding, or one document of a packed row. Everything that follows from it (what a token
may see, which token is the protected first one, positions) follows from one integer for each token: the index of the
first real token of its sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from selattn.errors import SelattnError


@dataclass(frozen=True)
class Sequences:
    """The sequences of a batch of rows.

    Build it once for all layers with `from_mask`, `from_documents`, `from_cu_seqlens` or `from_position_ids`.

    Attributes:
        start: [B, M] int64, the index of the first real token of the sequence that a token belongs to; M for padding.
    """

    start: Tensor

    @property
    def real(self) -> Tensor:
        """[B, M] bool: True for tokens, False for padding."""
        return self.start < self.start.shape[-1]

    @property
    def first(self) -> Tensor:
        """[B, M] bool: the first real token of each sequence, the one that selection never masks."""
        return self.start == torch.arange(self.start.shape[-1], device=self.start.device)

    @property
    def positions(self) -> Tensor:
        """[B, M] int64: the position inside the sequence, from 0; 0 for padding."""
        index = torch.arange(self.start.shape[-1], device=self.start.device)
        return (index - self.start).clamp(min=0)

    @classmethod
    def from_mask(cls, mask: Tensor) -> Sequences:
        """One sequence in each row: mask [B, M], true (or 1) for real tokens. Padding may stand on either side."""
        _check_grid("mask", mask)
        return cls.from_documents(torch.zeros_like(mask, dtype=torch.int64), mask)

    @classmethod
    def from_documents(cls, ids: Tensor, mask: Tensor | None = None) -> Sequences:
        """Packed rows: ids [B, M], a run of equal ids is one document. mask [B, M], if given, is false for padding."""
        _check_grid("ids", ids)
        if mask is not None and mask.shape != ids.shape:
            raise SelattnError(f"ids are {list(ids.shape)} but mask is {list(mask.shape)}: they must have one shape")
        changes = torch.ones_like(ids, dtype=torch.bool)
        changes[:, 1:] = ids[:, 1:] != ids[:, :-1]
        return cls(_starts(changes, mask))

    @classmethod
    def from_cu_seqlens(cls, cu_seqlens: Tensor, total: int) -> Sequences:
        """One packed row of `total` tokens: cu_seqlens [documents + 1], cumulative lengths as flash-attn takes them.

        Tokens past the last document are padding, as in a packed buffer that is not full.
        """
        if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] < 2 or cu_seqlens.is_floating_point():
            raise SelattnError(
                "cu_seqlens must be a 1-D integer tensor [0, ..., tokens], "
                f"not {cu_seqlens.dtype} of shape {list(cu_seqlens.shape)}"
            )
        cu = cu_seqlens.to(torch.int64)
        rule = f"cu_seqlens must begin with 0, never fall, and end at most at the row's {total} tokens"
        in_range = (cu[0] == 0) & (cu.diff() >= 0).all() & (cu[-1] <= total)
        if torch.compiler.is_compiling():
            torch._assert_async(in_range, rule)  # values are unknown here, so the graph itself asserts it
        elif not bool(in_range):
            raise SelattnError(f"{rule}: {cu.tolist()} does not")
        index = torch.arange(total, device=cu.device)
        ids = torch.searchsorted(cu, index, right=True).unsqueeze(0)
        return cls.from_documents(ids, (index < cu[-1]).unsqueeze(0))

    @classmethod
    def from_position_ids(cls, position_ids: Tensor, mask: Tensor | None = None) -> Sequences:
        """Padding-free rows as transformers passes them: a document begins where position_ids [B, M] restart."""
        _check_grid("position_ids", position_ids)
        if mask is not None and mask.shape != position_ids.shape:
            raise SelattnError(
                f"position_ids are {list(position_ids.shape)} but mask is {list(mask.shape)}: they must have one shape"
            )
        changes = torch.ones_like(position_ids, dtype=torch.bool)
        changes[:, 1:] = position_ids[:, 1:] != position_ids[:, :-1] + 1
        return cls(_starts(changes, mask))


def visible_pairs(start: Tensor | None, until: Tensor | None, window: int | None, rows: int, keys: int) -> Tensor:
    """[B or 1] pairs of a query and a key that it sees; the `rows` queries are the last of the keys.

    start: `Sequences.start`; until: [B, M] the row from which a key is gone.
    """
    index = torch.arange(keys, device=next((x.device for x in (start, until) if x is not None), None))
    start = torch.zeros_like(index)[None] if start is None else start
    real = start < keys
    # Key j is seen from its own row on, by the real rows of its sequence that the window and the eviction leave.
    high = torch.searchsorted(torch.where(real, start, -1).cummax(-1).values, start.contiguous(), right=True)
    if window is not None:
        high = high.minimum(index + window)
    if until is not None:
        high = high.minimum(until)
    low = index.clamp(min=keys - rows).expand(high.shape)
    queries = torch.nn.functional.pad((real & (index >= keys - rows)).cumsum(-1), (1, 0)).expand(high.shape[0], -1)
    seen = queries.gather(-1, high.clamp(0, keys)) - queries.gather(-1, low)
    return seen.clamp(min=0).where(real, 0).sum(-1)


def _starts(changes: Tensor, mask: Tensor | None) -> Tensor:
    """The first real index of each token's run (a run begins at each true of `changes`), M for padding."""
    index = torch.arange(changes.shape[-1], device=changes.device).expand(changes.shape)
    run = torch.where(changes, index, 0).cummax(-1).values
    if mask is None:
        return run
    real = mask.bool()
    before = real.long().cumsum(-1) - real.long()
    first = real & (before == before.gather(-1, run))
    start = torch.where(first, index, -1).cummax(-1).values
    return torch.where(real, start, changes.shape[-1])


def _check_grid(name: str, tensor: Tensor) -> None:
    if tensor.ndim != 2:
        raise SelattnError(f"{name} must be [batch, keys], not {list(tensor.shape)}")
