"""Which token is evicted when: what the eviction order is computed from, what it is, and the rule for one row.

A policy is anything with the attributes of `Ranking`; `selattn.cache` has the built-in ones. Backends compute the
order (`OrderRequest` -> `Order`) and a step of decoding (`StepRequest`), and need to know no more of a policy.

Shapes: B batch, H query heads, G key-value heads, n queries, which are the last n of M entries (tokens in the order of
their positions), P independent orders (1 or G), S selection masks, C places of a layer.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from selattn.errors import SelattnError
from selattn.ops.request import Tokens
from selattn.ops.rules import Rules, position_bias

NEVER = 1 << 40  # a row that no sequence reaches
COMPILED = ("POLICY_SELECTIVE", "POLICY_H2O", "POLICY_TOVA", "POLICY_WINDOW")  # the policies that kernels may know


class Kept(NamedTuple):
    """The tokens that a layer keeps, as a policy sees them."""

    position: Tensor  # [B, P, C] in the sequence, -1 for an empty place
    score: Tensor  # [B, P, C] the policy's own
    f: Tensor  # [B, 1 or P, C] F, the smallest of the masks that the order's heads follow; 0 without or if not needed
    budget: int  # K; NEVER without a budget


class Ranking(Protocol):
    """The part of an eviction policy that backends need; `selattn.Policy` explains it."""

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
    """The state of M entries before, or after, some rows."""

    until: Tensor  # [B, P, M] int64, the row from which an entry is evicted; NEVER while it is kept
    f: Tensor  # [B, S, M] F
    score: Tensor  # [B, P, M]


class OrderRequest(NamedTuple):
    """n queries whose evictions are wanted. Backends change nothing in it."""

    tokens: Tokens  # the queries
    rules: Rules
    keys: Tensor  # [B, G, M, D] of all entries
    selection_keys: Tensor | None  # [B, S, M, Ds] of a separate bilinear form
    positions: Tensor  # [B, M] int64, -1 for padding and empty places
    policy: Ranking
    budget: int
    before: Order
    history: bool = False  # whether the scores after each row are wanted, too


class OrderCall(NamedTuple):
    """An `OrderRequest` for a kernel, made of tensors and numbers only, as a graph takes it."""

    query: Tensor
    keys: Tensor
    positions: Tensor
    before: Order
    rules: Rules  # the bias by positions is in `bias`
    bias: Tensor | None  # [B or 1, H or 1, n, M]
    form_query: Tensor | None  # [B, S, n, Ds] of a separate form
    form_keys: Tensor | None  # [B, S, M, Ds]
    policy: int  # in COMPILED
    parameter: float
    budget: int
    selects: bool  # else F is not needed
    history: bool


def order_call(request: OrderRequest) -> OrderCall:
    """The same without gradients, for a policy that has a number."""
    tokens, rules, before, policy = request.tokens, request.rules, request.before, request.policy
    selects = policy.needs_weights or policy.needs_f
    bias = position_bias(rules, tokens.query, request.positions) if selects else None
    form_query, form_keys = (tokens.selection_query, request.selection_keys) if selects else (None, None)
    return OrderCall(
        tokens.query.detach(),
        request.keys.detach(),
        request.positions,
        Order(before.until, before.f.detach(), before.score.detach()),
        rules._replace(bias=None),
        None if bias is None else bias.detach(),
        None if form_query is None else form_query.detach(),
        None if form_keys is None else form_keys.detach(),
        *policy_number(policy),
        budget=request.budget,
        selects=selects,
        history=request.history,
    )


def policy_number(policy: Ranking) -> tuple[int, float]:
    """The policy's place in COMPILED and its parameter; any numbers for one by which nothing is evicted here."""
    name, parameter = policy.compiled() or (COMPILED[0], 0.0)
    return COMPILED.index(name), parameter


class Slots(Protocol):
    """The storage of a layer, which a step of decoding writes to: R rows of C slots."""

    @property
    def keys(self) -> Tensor: ...  # [R, G, C, D]
    @property
    def values(self) -> Tensor: ...  # [R, G, C, Dv]
    @property
    def position(self) -> Tensor: ...  # [R, P, C] int32, -1 for an empty slot
    @property
    def f(self) -> Tensor: ...  # [R, S, O, C] F; O is 1, of the order that the mask's heads follow, or P
    @property
    def score(self) -> Tensor: ...  # [R, P, C], or no places if the policy keeps none
    @property
    def selection_keys(self) -> Tensor | None: ...  # [R, S * O, C, Ds]


class Stored(NamedTuple):
    """The tensors of `Slots`, for those who need a tuple."""

    keys: Tensor
    values: Tensor
    position: Tensor
    f: Tensor
    score: Tensor
    selection_keys: Tensor | None


def stored(slots: Slots) -> Stored:
    """The tensors themselves: what is written to them is written to the slots."""
    return Stored(slots.keys, slots.values, slots.position, slots.f, slots.score, slots.selection_keys)


class StepRequest(NamedTuple):
    """One query for each sequence of the batch, over the slots of a layer."""

    tokens: Tokens
    rules: Rules
    slots: Slots
    rows: Tensor | None  # [B] int64, the row of each sequence; None: sequence b is row b
    length: Tensor  # [B] int64, real tokens so far
    policy: Ranking
    budget: int | None  # None: nothing has to be evicted
    used: int  # slots, from the first on, that may hold a token after this step


def masks_of_orders(orders: int, masks: int, heads: int) -> list[slice]:
    """The selection masks that the heads of each eviction order follow."""
    each, share = heads // orders, heads // max(masks, 1)
    return [slice(p * each // share, ((p + 1) * each - 1) // share + 1) for p in range(orders)]


def orders_of_masks(rules: Rules, separate: bool, masks: int, orders: int, heads: int) -> list[slice]:
    """The eviction orders that keep what each mask may select.

    Of a selecting head that is its own; of a separate form those of all heads that follow the mask.
    """
    if orders == 1 or rules.selection is None:
        return [slice(0, 1)] * masks
    if separate:
        return masks_of_orders(masks, orders, heads)  # the same question, the other way round
    own = [head // (heads // orders) for head in rules.selection.heads]
    return [slice(p, p + 1) for p in own]


def stands_alone(rules: Rules, separate: bool, masks: int, orders: int, heads: int) -> bool:
    """Whether each eviction order and its masks have nothing to do with the others: each mask selects in its own."""
    if orders == 1 or masks == 0 or masks % orders or rules.pattern is not None:
        return False
    own = orders_of_masks(rules, separate, masks, orders, heads)
    return own == [slice(s * orders // masks, s * orders // masks + 1) for s in range(masks)]


def smallest_f(f: Tensor, orders: int, heads: int) -> Tensor:
    """[B, 1 or P, C] of f [B, S, C]: the smallest F of the masks that each order's heads follow."""
    if orders == 1:
        return f.amin(1, keepdim=True)
    return torch.stack([f[:, masks].amin(1) for masks in masks_of_orders(orders, f.shape[1], heads)], 1)


def victim(policy: Ranking, kept: Kept) -> Tensor:
    """[B, P] the place of the token to evict: the highest rank; of equals not the first token, then the oldest."""
    occupied = kept.position >= 0
    rank = policy.rank(kept).masked_fill(~occupied, -torch.inf)
    highest = rank.amax(-1, keepdim=True)
    if policy.compiled() is None:
        _refuse_nan(policy, highest, occupied, kept.budget)
    worst = occupied & (rank == highest)
    age = torch.where(kept.position == 0, torch.iinfo(torch.int32).max - 1, kept.position)
    return age.masked_fill(~worst, torch.iinfo(torch.int32).max).argmin(-1)


def _refuse_nan(policy: Ranking, highest: Tensor, occupied: Tensor, budget: int) -> None:
    """A NaN from a user's own policy would choose the first place, whatever token is there. Only full rows count."""
    known = highest.device.type == "cpu" and not torch.compiler.is_compiling()
    if highest.is_meta or (known and not math.isnan(float(highest.sum()))):
        return
    rule = f"the policy {policy.name!r} gives a rank that is NaN: give a number for each token, or -inf to keep it"
    bad = (highest.isnan() & (occupied.sum(-1, keepdim=True) >= budget)).any()
    if not known:
        torch._assert_async(~bad, rule)  # a GPU is not waited for
    elif bool(bad):
        raise SelattnError(rule)
