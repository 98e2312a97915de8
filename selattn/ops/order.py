"""Who leaves when: what the eviction order is computed from, what it is, and the rule for one row.

A policy is anything with the attributes of `Ranking`; `selattn.eviction` has those that there are. Backends compute the
order (`OrderRequest` -> `Order`) and a step of decoding (`StepRequest`) by it, and so need to know no more of a policy.

Shapes: B batch, H query heads, G key-value heads, n queries, which are the last n of M entries (tokens in the order of
their positions), P independent orders (1 or G), S selection masks, C places of a layer.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from selattn.ops.rules import Rules
from selattn.ops.tokens import Tokens

NEVER = 1 << 40  # a row that no sequence reaches


class Kept(NamedTuple):
    """The tokens that a layer keeps, as a policy sees them."""

    position: Tensor  # [B, P, C] in the sequence, -1 for an empty place
    score: Tensor  # [B, P, C] the policy's own
    f: Tensor  # [B, 1, C] F, the smallest of several selection masks; 0 in a standard model, or if not needed
    budget: int  # K; NEVER where there is none


class Ranking(Protocol):
    """What backends need of an eviction policy. `selattn.Policy` says what each means."""

    @property
    def name(self) -> str: ...
    @property
    def per_head(self) -> bool: ...
    @property
    def leaves_early(self) -> bool: ...
    @property
    def needs_weights(self) -> bool: ...
    @property
    def needs_f(self) -> bool: ...
    def rank(self, kept: Kept) -> Tensor: ...
    def leaves(self, kept: Kept) -> Tensor | None: ...
    def update(self, score: Tensor, weights: Tensor) -> Tensor: ...
    def compiled(self) -> tuple[str, float] | None: ...


class Order(NamedTuple):
    """What is known of M entries before, and after, some rows."""

    until: Tensor  # [B, P, M] int64, the row from which an entry is gone; NEVER while it is kept
    f: Tensor  # [B, S, M] F
    score: Tensor  # [B, P, M]


class OrderRequest(NamedTuple):
    """n queries whose evictions are wanted. Nothing in it is changed."""

    tokens: Tokens  # the queries
    rules: Rules
    keys: Tensor  # [B, G, M, D] of all entries
    selection_keys: Tensor | None  # [B, S, M, Ds] of a separate bilinear form
    positions: Tensor  # [B, M] int64, -1 for padding and empty places
    policy: Ranking
    budget: int
    before: Order
    history: bool = False  # whether the scores after each row are wanted, too


class Slots(Protocol):
    """The storage of a layer, which a step of decoding writes to."""

    keys: Tensor | None  # [B, G, C, D]
    values: Tensor | None  # [B, G, C, Dv]
    position: Tensor  # [B, P, C] int32, -1 for an empty slot
    f: Tensor  # [B, S, P, C] F
    score: Tensor  # [B, P, C], or no places if the policy keeps none
    selection_keys: Tensor | None  # [B, S, C, Ds]
    length: Tensor  # [B] int64 real tokens so far


class StepRequest(NamedTuple):
    """One query for each row of the batch, over the slots of a layer."""

    tokens: Tokens
    rules: Rules
    slots: Slots
    policy: Ranking
    budget: int | None  # None: nobody has to leave
    used: int  # slots, from the first on, that may hold a token after this step


def victim(policy: Ranking, kept: Kept) -> Tensor:
    """[B, P] the place of the token that leaves: the highest rank; of equals not the first token, then the oldest."""
    occupied = kept.position >= 0
    rank = policy.rank(kept).masked_fill(~occupied, -torch.inf)
    worst = occupied & (rank == rank.amax(-1, keepdim=True))
    age = torch.where(kept.position == 0, torch.iinfo(torch.int32).max - 1, kept.position)
    return age.masked_fill(~worst, torch.iinfo(torch.int32).max).argmin(-1)
