"""The sparse attention patterns of Child et al. (2019), "Generating Long Sequences with Sparse Transformers".

Both factorise causal attention in two parts, A1 and A2 (their section 4.3; l is the stride, i and j positions in the
sequence, j <= i):

    strided   A1 = { j : i - j <= l }                 A2 = { j : (i - j) mod l = 0 }
    fixed     A1 = { j : floor(j / l) = floor(i / l) }  A2 = { j : j mod l >= l - c }

A pattern says which heads use which part: all heads both ("merged", what their text models use), the first half of the
heads A1 and the second half A2 ("split"), or one part only ("first", "second": for layers that interleave the parts).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from selattn.errors import SelattnError

COMBINE = ("merged", "split", "first", "second")


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


def encode_pattern(pattern: Pattern | None) -> list[int]:
    """The pattern as integers, the only form that a registered torch operator takes."""
    if pattern is None:
        return []
    summary = pattern.summary if isinstance(pattern, Fixed) else 0
    return [pattern.stride, summary, COMBINE.index(pattern.combine)]


def decode_pattern(code: list[int]) -> Pattern | None:
    """The inverse of `encode_pattern`."""
    if not code:
        return None
    stride, summary, combine = code
    return Fixed(stride, summary, COMBINE[combine]) if summary else Strided(stride, COMBINE[combine])


def _check(pattern: Strided | Fixed) -> None:
    if not _whole(pattern.stride) or pattern.stride < 1:
        raise SelattnError(f"the stride of a {pattern.kind} pattern must be at least 1, not {pattern.stride!r}")
    if pattern.combine not in COMBINE:
        raise SelattnError(f"combine must be one of {', '.join(COMBINE)}, not {pattern.combine!r}")


def _whole(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)
