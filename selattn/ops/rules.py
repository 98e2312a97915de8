"""The settings of a layer's attention: one description for the operator, the cache and the models.

`Rules` holds for every query. Among them are the sparse patterns of Child et al. (2019),
"Generating Long Sequences with Sparse Transformers". Both factorise causal attention in two parts, A1 and A2 (their
section 4.3; l is the stride, i and j positions in the sequence, j <= i):

    strided   A1 = { j : i - j <= l }                 A2 = { j : (i - j) mod l = 0 }
    fixed     A1 = { j : floor(j / l) = floor(i / l) }  A2 = { j : j mod l >= l - c }

A pattern says which heads use which part: all heads both ("merged", what their text models use), the first half of the
heads A1 and the second half A2 ("split"), or one part only ("first", "second": for layers that interleave the parts).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from selattn.errors import SelattnError
from selattn.ops.selection import Selection

COMBINE = ("merged", "split", "first", "second")


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Logits, F, softmax and sums are fp32 for half-precision inputs."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


@dataclass(frozen=True)
class Strided:
    """Child et al.'s strided pattern: the last l tokens, and every l-th token before them."""

    stride: int
    combine: str = "merged"
    kind: ClassVar[str] = "strided"

    def __post_init__(self) -> None:
        _check(self)

    def parts(self, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        """A1 and A2 for broadcastable positions i and j."""
        return i - j <= self.stride, (i - j) % self.stride == 0


@dataclass(frozen=True)
class Fixed:
    """Child et al.'s fixed pattern: the own block of l tokens, and the last c tokens (the summary) of each block."""

    stride: int
    summary: int
    combine: str = "merged"
    kind: ClassVar[str] = "fixed"

    def __post_init__(self) -> None:
        _check(self)
        if not _whole(self.summary) or not 1 <= self.summary <= self.stride:
            raise SelattnError(
                f"the summary of a fixed pattern must be 1 to its stride {self.stride}, not {self.summary!r}"
            )

    def parts(self, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        """A1 and A2 for broadcastable positions i and j."""
        return i // self.stride == j // self.stride, j % self.stride >= self.stride - self.summary


Pattern = Strided | Fixed


def pattern_visible(pattern: Pattern, i: Tensor, j: Tensor, heads: int) -> Tensor:
    """Which keys the pattern shows: i [B, N, 1] and j [B, 1, M] (positions) to bool [B, 1 or H, N, M]."""
    first, second = pattern.parts(i, j)
    if pattern.combine == "merged":
        return (first | second).unsqueeze(1)
    if pattern.combine != "split":
        return (first if pattern.combine == "first" else second).unsqueeze(1)
    uses_first = torch.arange(heads, device=first.device) < (heads + 1) // 2
    return torch.where(uses_first[:, None, None], first.unsqueeze(1), second.unsqueeze(1))


def _check(pattern: Strided | Fixed) -> None:
    if not _whole(pattern.stride) or pattern.stride < 1:
        raise SelattnError(f"the stride of a {pattern.kind} pattern must be at least 1, not {pattern.stride!r}")
    if pattern.combine not in COMBINE:
        raise SelattnError(f"combine must be one of {', '.join(COMBINE)}, not {pattern.combine!r}")


def _whole(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


# From positions of queries [B or 1, n] and of keys [B or 1, M], int64 from 0, to what is added to their logits,
# [B or 1, H or 1, n, M]; -inf hides. What padding and empty places get does not matter.
PositionBias = Callable[[Tensor, Tensor], Tensor]


class Rules(NamedTuple):
    """The settings of a layer's attention, the same for every query."""

    # Selection; None is standard attention, F = 0.
    selection: Selection | None = None
    strength: float | Tensor = 1.0  # multiplies S; a tensor is 0-d
    # What a query sees, apart from causality: both count positions in the sequence.
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
        """The strength as a 0-d tensor on the query's device; None for 1, so that the common case costs nothing."""
        exact = compute_dtype(query.dtype)
        if isinstance(self.strength, Tensor):
            return self.strength.to(query.device, exact)
        return None if self.strength == 1.0 else torch.tensor(self.strength, dtype=exact, device=query.device)

    def masks(self, selection_query: Tensor | None) -> int:
        """S, the number of selection masks; `selection_query` [B, S, N, Ds] belongs to a separate bilinear form."""
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
    bias = rules.bias(at[:, -query.shape[2] :], at)
    want = (query.shape[0], query.shape[1], query.shape[2], positions.shape[-1])
    fits = bias.ndim == 4 and bias.shape[2:] == want[2:] and bias.shape[0] in (1, want[0])
    if not fits or bias.shape[1] not in (1, want[1]):
        raise SelattnError(
            f"a bias by positions must be [batch, heads, queries, keys] {list(want)} (batch and heads may be 1)"
            f", not {list(bias.shape)}"
        )
    return bias.to(compute_dtype(query.dtype))


def step_bias(rules: Rules, query: Tensor, position: Tensor, now: Tensor) -> Tensor | None:
    """[B or 1, H or 1, 1, C + 1] the bias of one query at `now` [B] over slots, and behind them over its own token.

    position: [B, P, C]; each head's bias is by the positions of its own eviction order.
    """
    if rules.bias is None:
        return None
    orders, heads, each = position.shape[1], query.shape[1], []
    for p in range(orders):
        bias = position_bias(rules, query, torch.cat([position[:, p].long(), now[:, None]], -1))
        assert bias is not None
        if orders > 1:
            bias = bias.expand(-1, heads, -1, -1)[:, p * heads // orders : (p + 1) * heads // orders]
        each.append(bias)
    return each[0] if orders == 1 else torch.cat(each, 1)


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
