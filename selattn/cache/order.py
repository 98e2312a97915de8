"""What the eviction order is computed from, and what it is."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

NEVER = 1 << 40  # a row that no sequence reaches


class Order(NamedTuple):
    """What is known of M entries (tokens in the order of their positions) before, and after, some rows."""

    until: Tensor  # [B, P, M] int64, the row from which an entry is gone; NEVER while it is kept
    state: Tensor  # [B, S, M] F
    score: Tensor  # [B, P, M]


class Strip(NamedTuple):
    """n queries, which are the last n of the M entries."""

    positions: Tensor  # [B, M] int64, -1 for padding and empty places
    logits: Tensor | None  # [B, H, n, M], -inf where invisible; only for policies that need weights
    selected: Tensor | None  # [B, S, n, M] the constrained S as if nothing had left; None in a standard model
    heads: tuple[int, int]  # H, G
    selecting: list[int]  # [S] the key-value head of each selecting head
    rows: int  # n
    shift: bool
