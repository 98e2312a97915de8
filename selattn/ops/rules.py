"""What the attention of a layer does: the one description, for the operator, the cache and the models alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from selattn.errors import SelattnError
from selattn.ops.patterns import Pattern, pattern_visible
from selattn.ops.precision import compute_dtype
from selattn.ops.selection import Selection

# From positions of queries [B or 1, n] and of keys [B or 1, M], int64 from 0, to what is added to their logits,
# [B or 1, H or 1, n, M]; -inf hides. What padding and empty places get does not matter.
PositionBias = Callable[[Tensor, Tensor], Tensor]


class Rules(NamedTuple):
    """All that holds for every query of a layer, whatever tokens come."""

    # Selection; None is standard attention, F = 0.
    selection: Selection | None = None
    strength: float | Tensor = 1.0  # multiplies S; a tensor is 0-d
    # What a query sees, beside causality: both count positions in the sequence.
    window: int | None = None  # the last `window` tokens, the own one included
    pattern: Pattern | None = None
    # What is done to the logits.
    scale: float | None = None  # the factor of Q K^T; None is 1 / sqrt(D)
    softcap: float | None = None
    dropout_p: float = 0.0
    tau: float = 1.0  # the clamp of the memory M_i
    tolerance: float = 2.0**-24  # of attention mass that a row may lose to columns that are left out
    bias: PositionBias | None = None  # added to the logits after scale and soft cap

    def scale_of(self, query: Tensor) -> float:
        """The factor of Q K^T."""
        return query.shape[-1] ** -0.5 if self.scale is None else self.scale

    def strength_of(self, query: Tensor) -> Tensor | None:
        """The strength as a 0-d tensor beside the query; None for 1, so that the common case costs nothing."""
        exact = compute_dtype(query.dtype)
        if isinstance(self.strength, Tensor):
            return self.strength.to(query.device, exact)
        return None if self.strength == 1.0 else torch.tensor(self.strength, dtype=exact, device=query.device)

    def masks(self, selection_query: Tensor | None) -> int:
        """S, the number of selection masks; `selection_query` [B, S, N, Ds] is that of a separate bilinear form."""
        if self.selection is None:
            return 0
        return len(self.selection.heads) if selection_query is None else selection_query.shape[1]


def position_bias(rules: Rules, query: Tensor, positions: Tensor) -> Tensor | None:
    """[B or 1, H or 1, n, M] the bias of the queries [B, H, n, D], which are the last n of M entries at `positions`.

    positions: [B or 1, M], below 0 for padding and empty places.
    """
    if rules.bias is None:
        return None
    at = positions.clamp(min=0)
    found = rules.bias(at[:, -query.shape[2] :], at)
    want = (query.shape[0], query.shape[1], query.shape[2], positions.shape[-1])
    fits = found.ndim == 4 and found.shape[2:] == want[2:] and found.shape[0] in (1, want[0])
    if not fits or found.shape[1] not in (1, want[1]):
        raise SelattnError(
            f"a bias by positions must be [batch, heads, queries, keys] {list(want)} (batch and heads may be 1)"
            f", not {list(found.shape)}"
        )
    return found.to(compute_dtype(query.dtype))


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
