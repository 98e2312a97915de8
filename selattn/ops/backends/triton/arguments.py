"""What the kernels are given: `Call`, one tuple of tensors and numbers for all, and `How`, known when they compile.

Shapes as in `selattn.ops.request`: B batch, H query heads, G key-value heads, N queries (the last N of M keys), S
masks. T is the number of blocks of BM rows.
"""

from __future__ import annotations

from collections import namedtuple
from typing import NamedTuple

from torch import Tensor

from selattn.ops.selection import Selection

# The switches of `Selection` as kernels are given them: 1 or 0 each, in one bundle, whatever they are.
Switches = namedtuple("Switches", tuple(Selection().switches))  # type: ignore[misc]


def switches_of(selection: Selection) -> Switches:
    """The bundle for one call. The heads are no part of it: they do not decide the code of a kernel."""
    return Switches(**{name: int(on) for name, on in selection.switches.items()})


class Rows(NamedTuple):
    """A tensor [B, heads, rows, size] whose rows are dense, with its strides."""

    data: Tensor | None
    batch: int
    head: int
    row: int


class Matrix(NamedTuple):
    """A tensor that broadcasts over [B, H, N, M], with its strides: 0 where it has size 1."""

    data: Tensor | None
    batch: int
    head: int
    row: int
    column: int


class Call(NamedTuple):
    """One call of attention. Tensors that the call does not need are None; `How` says which."""

    query: Rows
    key: Rows
    value: Rows
    selecting_query: Rows  # the queries, or those of the separate form
    selecting_key: Rows
    bias: Matrix  # fp32
    mask: Matrix  # bool, as bytes
    selecting_mask: Matrix  # the same for a separate form: what mask and bias leave to any head
    N: int
    M: int
    H: int
    G: int
    S: int  # 1 in standard attention, too
    natural_scale: float  # the scale itself; those below are in base 2
    scale: float
    selecting_scale: float
    cap: float
    tau: float
    least: float  # a column dies with F of at least this much
    heads: Tensor | None  # [S] int32, the head of `selecting_query` for each mask
    strength: Tensor | None  # 0-d fp32
    rows: Tensor | None  # [B, N] int32, a row's position; -1 for padding
    first: Tensor | None  # [B, M] int32, where the sequence of a token begins
    last: Tensor | None  # [B, 1 or G, M] int32, one past the last row that sees a key; 0 for padding
    last_any: Tensor | None  # [B, M] the largest of them
    last_form: Tensor | None  # [B, S, M] the largest of those of the heads of each mask, for a separate form
    last_selecting: Tensor | None  # [B, S, M] one past the last row that may select a key; 0 if it is protected
    initial_f: Tensor | None  # [B, S, M] fp32, F before the first row
    low: Tensor | None  # [B, T] int32, the first key that some row of a block sees
    block_f: Tensor | None  # [B, S, T, M] fp32, F at the first row of each block
    columns: Tensor | None  # [B, lists, T, M] int32, the keys of each block, in order
    counts: Tensor | None  # [B, lists, T] int32, how many they are


class How(NamedTuple):
    """What decides the code of a kernel."""

    select: bool  # else standard attention: F = 0
    separate: bool
    switches: Switches  # of selection
    softcap: bool
    strength: bool
    bias: bool
    mask: bool
    selecting_mask: bool
    padded: bool  # some rows are padding: see Call.rows
    first: bool  # there is Call.first; else every sequence begins with key 0
    last: int  # 0: rows see all keys before them; 1: see Call.last; 2: that differs between key-value heads
    low: bool
    gather: bool  # the keys of a block are listed, else they are neighbours
    lists: int  # lists for each row of the batch: S, or 1 in standard attention
    dies: bool  # columns may be dead
    leans_on_first: bool  # the bound for that may use the first token
    initial_f: bool
    final_f: bool
    memory: bool
    D: int
    D_padded: int
    Dv: int
    Dv_padded: int
    Ds: int  # of the selecting head
    Ds_padded: int
    precision: str  # of products in fp32
    sums: str  # of products with dS
