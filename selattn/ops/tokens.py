"""What a layer's attention is given: the new tokens, and the rules of the layer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from selattn.ops.backends.tile import compute_dtype
from selattn.ops.patterns import Pattern, pattern_visible
from selattn.ops.selection import Selection


class Tokens(NamedTuple):
    """What new tokens bring."""

    query: Tensor  # [B, H, n, D]
    key: Tensor  # [B, G, n, D]
    value: Tensor  # [B, G, n, Dv]
    real: Tensor | None = None  # [B, n] bool; None: all are
    selection_query: Tensor | None = None  # [B, S, n, Ds]
    selection_key: Tensor | None = None  # [B, S, n, Ds]

    def cut(self, begin: int, end: int) -> Tokens:
        """Some of them."""

        def part(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[..., begin:end, :]

        real = None if self.real is None else self.real[:, begin:end]
        q, k, v = (x[..., begin:end, :] for x in self[:3])
        return Tokens(q, k, v, real, part(self.selection_query), part(self.selection_key))


class Rules(NamedTuple):
    """What the attention of a layer does."""

    selection: Selection | None = None  # None: standard attention
    strength: float | Tensor = 1.0
    window: int | None = None
    pattern: Pattern | None = None
    scale: float | None = None
    dropout_p: float = 0.0
    tau: float = 1.0
    backend: str = "auto"
    return_f: bool = False
    return_memory: bool = False
    return_weights: bool = False

    def scale_of(self, query: Tensor) -> float:
        """The factor of Q K^T."""
        return query.shape[-1] ** -0.5 if self.scale is None else self.scale

    def strength_of(self, query: Tensor) -> Tensor | None:
        """The strength as the operator's parts take it: None for 1."""
        if isinstance(self.strength, Tensor):
            return self.strength.to(compute_dtype(query.dtype))
        if self.strength == 1.0:
            return None
        return torch.tensor(self.strength, dtype=compute_dtype(query.dtype), device=query.device)

    def masks(self, tokens: Tokens) -> int:
        """S."""
        if self.selection is None:
            return 0
        return len(self.selection.heads) if tokens.selection_query is None else tokens.selection_query.shape[1]


def position_mask(positions: Tensor, count: int, rules: Rules, heads: int) -> Tensor | None:
    """[B, 1 or H, n, M] what a window or pattern shows to the last `count` of M entries, by positions [B, M].

    Entries of a cache do not stand where their tokens stood, so that only positions tell.
    """
    if rules.window is None and rules.pattern is None:
        return None
    i, j = positions[:, -count:, None], positions[:, None, :]
    seen = torch.ones_like(i == j)[:, None]
    if rules.window is not None:
        seen = seen & (i - j < rules.window)[:, None]
    if rules.pattern is not None:
        seen = seen & pattern_visible(rules.pattern, i, j, heads)
    return seen
