"""Where the sequences of a batch begin: padding on either side, and several documents in one row.

A sequence is a row without its padding, or one document of a packed row. Everything that follows from it (what a token
may see, which token is the protected first one, positions) follows from one integer for each token: the index of the
first real token of its sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from selattn.errors import SelattnError


@dataclass(frozen=True)
class Sequences:
    """The sequences of a batch of rows.

    Build it once for all layers with `from_mask`, `from_documents`, `from_cu_seqlens` or `from_position_ids`.

    Attributes:
        start: [B, M] int64, the index of the first real token of the sequence that a token belongs to; M for padding.
    """

    start: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.start, Tensor) or self.start.dtype != torch.int64 or self.start.ndim != 2:
            raise SelattnError(
                f"Sequences.start must be an int64 tensor [batch, keys], not {_kind(self.start)}: "
                "build it with from_mask, from_documents, from_cu_seqlens or from_position_ids"
            )

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Sequences:
        """The same sequences on another device, for layers that live there. Accelerate's hooks call it, too."""
        return Sequences(self.start.to(device, non_blocking=non_blocking))

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
        """[B, M] int64: how many real tokens of its sequence stand before a token; 0 for padding."""
        return positions(self.start)

    @classmethod
    def from_mask(cls, mask: Tensor) -> Sequences:
        """One sequence in each row: mask [B, M], true (or 1) for real tokens. Padding may stand anywhere."""
        _check_grid("mask", mask)
        return cls(_starts(torch.zeros_like(mask, dtype=torch.bool), mask))

    @classmethod
    def from_documents(cls, ids: Tensor, mask: Tensor | None = None) -> Sequences:
        """Packed rows: ids [B, M], a run of equal ids is one document, whose number does not come again in its row.

        mask [B, M], if given, is false for padding.
        """
        _check_grid("ids", ids)
        _check_mask("ids are", ids, mask)
        start = _starts(ids != ids.roll(1, -1), mask)
        _check_once(ids, start)
        return cls(start)

    @classmethod
    def from_cu_seqlens(cls, cu_seqlens: Tensor, total: int) -> Sequences:
        """One packed row of `total` tokens: cu_seqlens [documents + 1], cumulative lengths as flash-attn takes them.

        Tokens past the last document are padding, as in a packed buffer that is not full.
        """
        whole = isinstance(cu_seqlens, Tensor) and not cu_seqlens.is_floating_point()
        if not whole or cu_seqlens.ndim != 1 or cu_seqlens.shape[0] < 2:
            raise SelattnError(f"cu_seqlens must be a 1-D integer tensor [0, ..., tokens], not {_kind(cu_seqlens)}")
        if isinstance(total, bool) or not isinstance(total, (int, torch.SymInt)) or total < 0:
            raise SelattnError(f"total must be the number of tokens in the row, not {total!r}")
        cu = cu_seqlens.to(torch.int64)
        rule = f"cu_seqlens must begin with 0, never fall, and end at most at the row's {total} tokens"
        in_range = (cu[0] == 0) & (cu.diff() >= 0).all() & (cu[-1] <= total)
        if torch.compiler.is_compiling():
            torch._assert_async(in_range, rule)  # values are unknown here, so the graph itself asserts it
        elif not cu.is_meta and not bool(in_range):
            raise SelattnError(f"{rule}: {cu.tolist()} does not")
        index = torch.arange(total, device=cu.device)
        ids = torch.searchsorted(cu, index, right=True).unsqueeze(0)
        return cls(_starts(ids != ids.roll(1, -1), (index < cu[-1]).unsqueeze(0)))

    @classmethod
    def from_position_ids(cls, position_ids: Tensor, mask: Tensor | None = None) -> Sequences:
        """Padding-free rows as transformers passes them: a document begins where position_ids [B, M] restart."""
        _check_grid("position_ids", position_ids)
        _check_mask("position_ids are", position_ids, mask)
        return cls(_starts(position_ids != position_ids.roll(1, -1) + 1, mask))


def positions(start: Tensor) -> Tensor:
    """[B, M] `Sequences.positions` of a `Sequences.start`: padding between the tokens of a sequence does not count."""
    keys = start.shape[-1]
    real = start < keys
    before = real.long().cumsum(-1) - 1
    return (before - before.gather(-1, start.clamp(0, keys - 1))).where(real, 0)


def starts(positions: Tensor) -> Tensor:
    """`Sequences.start` of entries: padding has E; other entries that of the first token, -1 if it is gone."""
    size = positions.shape[-1]
    index = torch.arange(size, device=positions.device)
    first = torch.where(positions == 0, index, -1).cummax(-1).values
    return torch.where(positions >= 0, first, size)


def last_rows(start: Tensor, window: int | None) -> Tensor:
    """[B, M] one past the last row that sees each key: of the same sequence and in its window; any for padding.

    A sequence is a run of rows, so that this and causality (and padding) say all that a row sees. start: as above.
    """
    keys = start.shape[-1]
    real = start < keys
    # The first real row whose sequence began after this key's did.
    last = torch.searchsorted(torch.where(real, start, -1).cummax(-1).values, start.contiguous(), right=True)
    if window is not None:
        rank = real.long().cumsum(-1)  # a window counts tokens, no padding
        last = last.minimum(torch.searchsorted(rank, rank + window))
    return last


def visible_pairs(start: Tensor | None, until: Tensor | None, window: int | None, rows: int, keys: int) -> Tensor:
    """[B or 1] pairs of a query and a key that it sees; the `rows` queries are the last of the keys.

    start: `Sequences.start`; until: [B, M] the row from which a key is evicted.
    """
    index = torch.arange(keys, device=next((x.device for x in (start, until) if x is not None), None))
    start = torch.zeros_like(index)[None] if start is None else start
    real, high = start < keys, last_rows(start, window)
    if until is not None:
        high = high.minimum(until)
    low = index.clamp(min=keys - rows).expand(high.shape)
    queries = torch.nn.functional.pad((real & (index >= keys - rows)).cumsum(-1), (1, 0)).expand(high.shape[0], -1)
    seen = queries.gather(-1, high.clamp(0, keys)) - queries.gather(-1, low)
    return seen.clamp(min=0).where(real, 0).sum(-1)


def living_share(
    start: Tensor | None, until: Tensor | None, window: int | None, rows: int, keys: int, living: Tensor
) -> Tensor:
    """[B] fp64: of the visible pairs the `living` [B]; 1 where there are no pairs. until: [B, P, M] of P orders."""
    each = [None] if until is None else until.unbind(1)
    pairs = torch.stack([visible_pairs(start, x, window, rows, keys) for x in each]).sum(0)
    return torch.where(pairs > 0, living.double() / pairs.clamp(min=1), 1.0)


def _starts(changes: Tensor, mask: Tensor | None) -> Tensor:
    """The first real index of each token's run (which begins at index 0 and where `changes`), M for padding."""
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
    if not isinstance(tensor, Tensor):
        raise SelattnError(f"{name} must be a tensor [batch, keys], not {_kind(tensor)}")
    if tensor.ndim != 2:
        raise SelattnError(f"{name} must be [batch, keys], not {list(tensor.shape)}")
    if tensor.is_floating_point():
        raise SelattnError(f"{name} must hold whole numbers, or true and false, not {tensor.dtype}")


def _check_mask(who: str, ids: Tensor, mask: Tensor | None) -> None:
    if mask is None:
        return
    _check_grid("mask", mask)
    if mask.shape != ids.shape:
        raise SelattnError(f"{who} {list(ids.shape)} but mask is {list(mask.shape)}: they must have one shape")


def _check_once(ids: Tensor, start: Tensor) -> None:
    """No number of a document comes again behind another: that would be a document of its own."""
    if ids.is_meta:
        return
    rule = (
        "a document's number must not come again after another's: number them 0, 1, 2, ..., and tell padding by a mask"
    )
    ids, order = ids.long().sort(-1)
    start = start.gather(-1, order)
    real = start < start.shape[-1]
    same = (ids[:, 1:] == ids[:, :-1]) & real[:, 1:] & real[:, :-1]
    again = same & (start[:, 1:] != start[:, :-1])
    if torch.compiler.is_compiling() or ids.device.type != "cpu":
        torch._assert_async(~again.any(), rule)  # a GPU is not waited for
    elif bool(again.any()):
        raise SelattnError(rule)


def _kind(x: Any) -> str:
    """The kind of an argument, for messages."""
    return f"{x.dtype} of shape {list(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"


def _from_leaves(leaves: Any, _: Any) -> Sequences:
    """Not checked: what goes over trees of tensors also puts other things into them (axes, names, None)."""
    made = object.__new__(Sequences)
    object.__setattr__(made, "start", next(iter(leaves)))
    return made


# A tree of tensors for torch: vmap goes over it, export takes it as an input, and hooks that move inputs find it.
_pytree.register_pytree_node(
    Sequences,
    lambda sequences: ([sequences.start], None),
    _from_leaves,
    serialized_type_name="selattn.Sequences",
    flatten_with_keys_fn=lambda sequences: ([(_pytree.GetAttrKey("start"), sequences.start)], None),
)
