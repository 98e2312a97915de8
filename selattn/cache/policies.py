"""Eviction policies: who leaves when a layer is full. One small class each; docs/cache.md shows how to add one.

Before a token attends, if the budget is used up, the kept earlier token that a policy ranks highest leaves for good.
Ties: never the sequence's first token, then the oldest. A policy may keep a score for each token, which it updates with
the attention weights after each query.
"""

from __future__ import annotations

import difflib
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from selattn.errors import SelattnError


class Kept(NamedTuple):
    """The tokens that a layer keeps, one of which must leave. C places; P is 1, or the number of key-value heads."""

    position: Tensor  # [B, P, C] in the sequence, -1 for an empty place
    score: Tensor  # [B, P, C] the policy's own
    forgotten: Tensor  # [B, 1, C] F, the smallest of several selection masks; 0 in a standard model, or if not needed
    budget: int


class Policy:
    """One eviction policy.

    Attributes:
        name: how it is asked for.
        per_head: each key-value head evicts on its own, so that positions differ between heads.
        evicts: whether anybody ever leaves.
        needs_weights: whether `update` wants the attention weights.
        needs_selection: whether `rank` reads F.
        native: its number in the compiled library, None if it is not there (then it runs in Python, row by row).
    """

    name: ClassVar[str]
    per_head: ClassVar[bool] = False
    evicts: ClassVar[bool] = True
    needs_weights: ClassVar[bool] = False
    needs_selection: ClassVar[bool] = False
    native: ClassVar[int | None] = None

    def __init_subclass__(cls) -> None:
        cls.native = cls.__dict__.get("native")  # never inherited: what a subclass overrides, the library does not know

    def rank(self, kept: Kept) -> Tensor:
        """[B, P, C]: the highest leaves."""
        raise NotImplementedError

    def update(self, score: Tensor, weights: Tensor) -> Tensor:
        """The new scores [B, P, C] after a query attended with `weights` [B, P, C], a mean over the heads of each P."""
        return score


class Selective(Policy):
    """The paper, section 4: the token with the highest F leaves."""

    name = "selective"
    needs_selection = True
    native = 0

    def rank(self, kept: Kept) -> Tensor:
        return kept.forgotten.expand_as(kept.position)


class H2O(Policy):
    """H2O (Zhang et al., 2023): the lowest accumulated attention leaves; the latest half of the budget is safe.

    Each key-value head on its own, as published.
    """

    name = "h2o"
    per_head = True
    needs_weights = True
    native = 1

    def rank(self, kept: Kept) -> Tensor:
        # How many kept tokens are newer: the coming one and the latest budget / 2 - 1 make the safe half.
        newer = kept.position.argsort(-1, descending=True).argsort(-1)
        return (-kept.score).masked_fill(newer < kept.budget // 2 - 1, -torch.inf)

    def update(self, score: Tensor, weights: Tensor) -> Tensor:
        return score + weights


class Tova(Policy):
    """TOVA (Oren et al., 2024): the token that the last query attended to least leaves, averaged over the heads."""

    name = "tova"
    needs_weights = True
    native = 2

    def rank(self, kept: Kept) -> Tensor:
        return -kept.score

    def update(self, score: Tensor, weights: Tensor) -> Tensor:
        return weights


class WindowPlus4(Policy):
    """The first 4 tokens and the latest (Oren et al.); with a budget below 5, as many of the first as fit."""

    name = "window+4"
    native = 3

    def rank(self, kept: Kept) -> Tensor:
        safe = kept.position < min(4, kept.budget - 1)
        return (-kept.position).to(kept.score.dtype).masked_fill(safe, -torch.inf)


class Window(Policy):
    """The latest tokens."""

    name = "window"
    native = 4

    def rank(self, kept: Kept) -> Tensor:
        return (-kept.position).to(kept.score.dtype)


class KeepAll(Policy):
    """Nobody leaves: budgets are not in force, and the cache grows with the text."""

    name = "none"
    evicts = False


POLICIES: dict[str, type[Policy]] = {cls.name: cls for cls in (Selective, H2O, Tova, WindowPlus4, Window)}


def make_policy(name: str) -> Policy:
    """The policy of that name."""
    known = {**POLICIES, KeepAll.name: KeepAll}
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise SelattnError(f"unknown eviction policy {name!r}{hint}: choose {', '.join(known)}")
    return known[name]()


def victim(policy: Policy, kept: Kept) -> Tensor:
    """[B, P] the place of the token that leaves: the highest rank; of equals not the first token, then the oldest."""
    occupied = kept.position >= 0
    rank = policy.rank(kept).masked_fill(~occupied, -torch.inf)
    worst = occupied & (rank == rank.amax(-1, keepdim=True))
    age = torch.where(kept.position == 0, torch.iinfo(torch.int32).max - 1, kept.position)
    return age.masked_fill(~worst, torch.iinfo(torch.int32).max).argmin(-1)
