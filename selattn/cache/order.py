"""The eviction order of whole sequences, and which tokens are kept at each row.

    gone = eviction_order(query, key, budget=64)             # [B, P, N]: the row from which each key is gone
    kept = kept_positions(gone, row=100)                     # [B, P, N] bool: what query 100 attends to
    output = selective_attention(query, key, value, visible_until=gone)

Rows are counted in key positions. P is 1, or the number of key-value heads where each evicts on its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from selattn.cache.budgets import Budgets
from selattn.cache.policies import Policy, make_policy
from selattn.errors import SelattnError
from selattn.ops import checks
from selattn.ops.backends import dispatch
from selattn.ops.backends.base import Backend
from selattn.ops.eviction import NEVER, Order, OrderRequest
from selattn.ops.request import Tokens
from selattn.ops.rules import Pattern, PositionBias, Rules, compute_dtype
from selattn.ops.selection import Selection
from selattn.ops.sequences import Sequences

DEFAULT_SELECTION = Selection()


def eviction_order(
    query: Tensor,
    key: Tensor,
    *,
    budget: int | None,
    policy: str | Policy | type[Policy] = "selective",
    selection: Selection | None = DEFAULT_SELECTION,
    selection_query: Tensor | None = None,
    selection_key: Tensor | None = None,
    strength: float | Tensor = 1.0,
    sequences: Sequences | None = None,
    window: int | None = None,
    pattern: Pattern | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    bias: PositionBias | None = None,
    backend: str | Backend = "auto",
) -> Tensor:
    """The row from which each key is gone, `selattn.cache.NEVER` if it stays, when the tokens come one by one.

    Before a token attends, if `budget` earlier tokens of its sequence are kept, the one that the policy ranks highest
    is evicted for good. There are no gradients. What is not listed here is as in `selattn.selective_attention`.

    Args:
        query: [B, H, N, D].
        key: [B, G, N, D]; H is a multiple of G.
        budget: K, the tokens that a query attends to at most, its own included; None for no limit.
        policy: which token is evicted, a name or a policy.
        selection: None for standard attention, where F = 0.
        pattern: of sparse attention, as in `selattn.causal_attention`.
        bias: what is added to the logits after scale and soft cap, a function of positions, see `selattn.ops.Rules`.

    Returns:
        [B, P, N] int64, which `visible_until` of the operator takes.
    """
    checks.kinds(query=query, key=key, strength=strength)
    checks.optional(selection=selection, selection_query=selection_query, selection_key=selection_key)
    checks.optional(sequences=sequences, window=window, pattern=pattern, scale=scale, softcap=softcap)
    checks.tensors(query, key, key, enable_gqa=True)
    checks.numbers(0.0, scale, softcap, window)
    checks.strength(strength)
    if query.shape[2] != key.shape[2]:
        raise SelattnError(f"there are {query.shape[2]} queries and {key.shape[2]} keys: give whole sequences")
    if selection is not None:
        checks.selection(query, key, selection, selection_query, selection_key)
    if sequences is not None:
        checks.sequences(sequences, key)
    if budget is not None:
        budget = Budgets(budget).for_layers(1)[0]
    tokens = Tokens(query, key, key, None, selection_query, selection_key)
    rules = Rules(
        selection=selection,
        strength=strength,
        window=window,
        pattern=pattern,
        scale=scale,
        softcap=softcap,
        bias=bias,
    )
    return evictions(tokens, sequences, rules, budget, make_policy(policy), backend)


def evictions(
    tokens: Tokens,
    sequences: Sequences | None,
    rules: Rules,
    budget: int | None,
    policy: Policy,
    backend: str | Backend = "auto",
) -> Tensor:
    """[B, P, N] the same by the rules of a layer; values are not read."""
    batch, groups, count = tokens.key.shape[:3]
    device, exact = tokens.key.device, compute_dtype(tokens.key.dtype)
    orders = groups if policy.per_head else 1
    until = torch.full((batch, orders, count), NEVER, dtype=torch.int64, device=device)
    if not in_force(budget, policy):
        return until
    if sequences is None:
        positions = torch.arange(count, device=device).expand(batch, count)
    else:
        positions = sequences.positions.masked_fill(~sequences.real, -1).expand(batch, count)
    f = torch.zeros(batch, rules.masks(tokens.selection_query), count, dtype=exact, device=device)
    score = torch.zeros(batch, orders, count, dtype=exact, device=device)
    limit = NEVER if budget is None else budget
    before = Order(until, f, score)
    request = OrderRequest(tokens, rules, tokens.key, tokens.selection_key, positions, policy, limit, before)
    return dispatch.order(request, backend)[0].until


def in_force(budget: int | None, policy: Policy) -> bool:
    """Whether anybody can leave: for want of room, or because the policy lets tokens go before."""
    return policy.evicts and (budget is not None or policy.leaves_early)


def kept_positions(order: Tensor, row: int | None = None, sequences: Sequences | None = None) -> Tensor:
    """[B, P, N] bool: the tokens that the query in a row attends to, its own among them, by an eviction order.

    Args:
        order: [B, P, N] of `eviction_order`, or one layer's `evicted_at` of a model's output.
        row: which; None for all rows, [B, P, N, N].
        sequences: of the same call, if there is padding or there are several documents; padding keeps nothing.
    """
    size = order.shape[-1]
    if row is not None and not 0 <= row < size:
        raise SelattnError(f"there are {size} rows, 0 to {size - 1}, and no row {row}")
    index = torch.arange(size, device=order.device)
    rows = index if row is None else index[row : row + 1]
    kept = (index <= rows[:, None]) & (rows[:, None] < order[..., None, :])  # [B, P, n, N]
    if sequences is not None:
        start = sequences.start
        kept = kept & ((start[:, None, :] == start[:, rows, None]) & (start[:, None, :] < size))[:, None]
    return kept if row is None else kept.squeeze(-2)
