"""Attention through a layer of the cache, and the same budgets in an ordinary full forward.

attend         new queries after what the layer keeps: one (decoding), or many (a prompt, a draft)
defer          whole sequences are kept by an empty layer, later
attend_whole   whole sequences with no cache: every row sees what it would have seen in decoding
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch
from torch import Tensor

from selattn.cache import gradients
from selattn.cache.decode import decode
from selattn.cache.entries import Entries
from selattn.cache.slots import SlotLayer
from selattn.errors import SelattnError
from selattn.eviction import Policy
from selattn.ops import Attention, Sequences, causal_attention, selective_attention
from selattn.ops.backends import dispatch
from selattn.ops.backends.tile import compute_dtype
from selattn.ops.order import NEVER, Order, OrderRequest
from selattn.ops.sequences import starts
from selattn.ops.tokens import Rules, Tokens, position_mask

PIECE = 512  # queries of a prompt that are served at once
DRAFT = 128  # tokens that can be taken back


def attend(layer: SlotLayer, tokens: Tokens, rules: Rules) -> Attention:
    """New tokens attend to what the layer keeps and to each other, and are kept, as if they had come one by one.

    There are no gradients: to ask for one is an error. The columns of F and of the weights are positions in the
    sequence. A token that has left has no weight, and its F is NaN: it is gone with the token.
    """
    if gradients.needed(tokens):
        with torch.no_grad():
            result = attend(layer, *gradients.detached(tokens, rules))
        return gradients.refuse_backward(result, tokens)
    if layer.deferred is not None:
        layer.settle()
    batch, count = tokens.query.shape[0], tokens.query.shape[2]
    if not layer.is_initialized:
        layer.allocate(tokens.key, tokens.value, rules.masks(tokens), tokens.selection_key)
    assert layer.keys is not None
    if layer.keys.shape[0] != batch:
        raise SelattnError(f"this cache holds a batch of {layer.keys.shape[0]}, not {batch}: begin with a new cache")
    plain = not (rules.return_f or rules.return_weights or rules.return_memory or rules.dropout_p or layer.record_past)
    together = layer.position.shape[1] == 1 or rules.selection is None
    if count == 1 and tokens.real is None and plain and together and layer.entries is None:
        return decode(layer, tokens, rules)
    if rules.return_f or rules.return_weights or rules.return_memory:
        result, positions = _piece(layer, tokens, rules, keep_draft=layer.record_past)
        return _by_position(result, positions, int(layer.length.max()))
    # A long prompt in pieces: memory follows the budget and the piece. What may be taken back is the last piece.
    draft = min(count, DRAFT) if layer.record_past else 0
    borders = [*range(0, count - draft, PIECE), count - draft, count]
    outputs = [
        _piece(layer, tokens.cut(begin, end), rules, keep_draft=layer.record_past and end == count)[0].output
        for begin, end in itertools.pairwise(borders)
        if begin < end
    ]
    return Attention(outputs[0] if len(outputs) == 1 else torch.cat(outputs, -2))


def defer(layer: SlotLayer, tokens: Tokens, rules: Rules) -> None:
    """An empty layer takes whole sequences, for which `attend_whole` does the work; what is kept is found when needed.

    A forward pass that has gradients costs nothing more for a cache that nobody reads.
    """
    tokens, rules = gradients.detached(tokens, rules)
    plain = rules._replace(dropout_p=0.0, return_f=False, return_memory=False, return_weights=False)
    layer.deferred = partial(attend, tokens=tokens, rules=plain)


def attend_whole(
    tokens: Tokens,
    sequences: Sequences | None,
    rules: Rules,
    budget: int | None = None,
    policy: Policy | None = None,
) -> Attention:
    """Whole sequences. With a budget each row sees what it would have seen in decoding. Has gradients.

    Where a budget is in force, `evicted_at` says the row from which each key is gone, `NEVER` if it stays.
    """
    limits: dict[str, Any] = {"sequences": sequences, "window": rules.window}
    batch, groups, count = tokens.key.shape[:3]
    if sequences is None:
        positions = torch.arange(count, device=tokens.key.device).expand(batch, count)
    else:
        positions = sequences.positions.masked_fill(~sequences.real, -1).expand(batch, count)
    if rules.selection is not None and rules.pattern is not None:  # which the selective operator takes as a mask
        limits["attn_mask"] = position_mask(positions, count, rules._replace(window=None), tokens.query.shape[1])
    if policy is None or not in_force(budget, policy):
        return _operator(tokens, tokens.key, tokens.value, tokens.selection_key, rules, limits)
    if policy.per_head and tokens.selection_key is not None:
        raise SelattnError(f"the policy {policy.name!r} evicts for each head: a separate bilinear form belongs to none")
    none = _none(tokens, rules, groups if policy.per_head else 1)
    entries = none.append(tokens.key, tokens.value, positions, tokens.selection_key)
    order, _ = _order(entries, tokens, rules, budget, policy, history=False)
    limits["visible_until"] = _one_or_each(order.until)
    result = _operator(tokens, tokens.key, tokens.value, tokens.selection_key, rules, limits)
    return result._replace(evicted_at=order.until)


def in_force(budget: int | None, policy: Policy) -> bool:
    """Whether anybody can leave: for want of room, or because the policy lets tokens go before."""
    return policy.evicts and (budget is not None or policy.leaves_early)


def _none(tokens: Tokens, rules: Rules, orders: int) -> Entries:
    """No entries yet."""
    batch, exact = tokens.key.shape[0], compute_dtype(tokens.key.dtype)
    device = tokens.key.device
    return Entries(
        tokens.key[..., :0, :],
        tokens.value[..., :0, :],
        torch.zeros(batch, 0, dtype=torch.int64, device=device),
        torch.zeros(batch, orders, 0, dtype=torch.int64, device=device),
        torch.zeros(batch, rules.masks(tokens), 0, dtype=exact, device=device),
        torch.zeros(batch, orders, 0, dtype=exact, device=device),
        None if tokens.selection_key is None else tokens.selection_key[..., :0, :],
    )


def _piece(layer: SlotLayer, tokens: Tokens, rules: Rules, keep_draft: bool) -> tuple[Attention, Tensor]:
    """Some tokens at once: who leaves when, attention with that, and what is kept goes back into the slots.

    The result is over entries; their positions [B, E] come with it.
    """
    before = layer.take()
    real = torch.ones_like(tokens.key[:, 0, :, 0], dtype=torch.bool) if tokens.real is None else tokens.real
    positions = (layer.length[:, None] + real.cumsum(-1) - 1).masked_fill(~real, -1)
    entries = before.append(tokens.key, tokens.value, positions, tokens.selection_key)
    order = Order(entries.until, entries.state, entries.score)
    scores = None
    if in_force(layer.budget, layer.policy):
        order, scores = _order(entries, tokens, rules, layer.budget, layer.policy, history=keep_draft)
    rules = rules._replace(return_f=rules.return_f or keep_draft)
    result = _over_entries(entries, tokens, rules, order.until if in_force(layer.budget, layer.policy) else None)
    state = order.state if result.state is None else result.state
    done = Entries(
        entries.keys, entries.values, entries.positions, order.until, state, order.score, entries.selection_keys
    )
    layer.length += real.sum(-1)
    layer.seen += positions.shape[-1]
    if not keep_draft:
        layer.put(done)
        return result, entries.positions
    if not layer.history:
        layer.history = [(before.state, before.score)]
    for row in range(positions.shape[-1]):
        # The state after a row is F of the next one; without the shift, of the row itself.
        at = row if rules.selection is not None and not rules.selection.shift else row + 1
        state_then = state if result.f is None or at >= result.f.shape[-2] else result.f[..., at, :]
        layer.history.append((state_then, order.score if scores is None else scores[row]))
    layer.entries = done
    return result, entries.positions


def _by_position(result: Attention, positions: Tensor, length: int) -> Attention:
    """What is over entries at `positions` [B, E], over the positions 0 to length - 1."""
    at = positions.where(positions >= 0, length)[:, None, None]  # padding goes to one place more, which is cut off

    def spread(x: Tensor | None, gone: float) -> Tensor | None:
        if x is None:
            return None
        wide = x.new_full((*x.shape[:-1], length + 1), gone)
        return wide.scatter(-1, at.expand_as(x), x)[..., :length]

    return result._replace(f=spread(result.f, torch.nan), weights=spread(result.weights, 0.0))


def _order(
    entries: Entries, tokens: Tokens, rules: Rules, budget: int | None, policy: Policy, history: bool
) -> tuple[Order, Tensor | None]:
    """The eviction order over the new tokens."""
    before = Order(entries.until, entries.state, entries.score)
    request = OrderRequest(
        tokens,
        rules,
        entries.keys,
        entries.selection_keys,
        entries.positions,
        policy,
        NEVER if budget is None else budget,
        before,
        history,
    )
    return dispatch.order(request, rules.backend)


def _over_entries(entries: Entries, tokens: Tokens, rules: Rules, until: Tensor | None) -> Attention:
    """The operator over entries, each of which is gone from row `until`; gives the state, too."""
    count = tokens.query.shape[-2]
    mask = position_mask(entries.positions, count, rules, tokens.query.shape[1])
    limits: dict[str, Any] = {"attn_mask": mask}
    # With a mask always: that of a single query would be taken for padding.
    some = until is not None or mask is not None
    if some or bool((entries.positions[:, :1] != 0).any()) or bool((entries.positions < 0).any()):
        limits["sequences"] = Sequences(starts(entries.positions))
    if until is not None:
        limits["visible_until"] = _one_or_each(until)
    if rules.selection is not None:
        limits |= {"return_state": True, "state": entries.state[..., :-count] if entries.size > count else None}
    rules = rules._replace(window=None, pattern=None)  # they are in the mask
    return _operator(tokens, entries.keys, entries.values, entries.selection_keys, rules, limits)


def _operator(
    tokens: Tokens, keys: Tensor, values: Tensor, selection_keys: Tensor | None, rules: Rules, limits: dict[str, Any]
) -> Attention:
    """The operator by the layer's rules; `limits` say what is visible."""
    call: dict[str, Any] = {
        "scale": rules.scale,
        "dropout_p": rules.dropout_p,
        "enable_gqa": True,
        "backend": rules.backend,
        "return_weights": rules.return_weights,
        **limits,
    }
    if rules.selection is None:
        result = causal_attention(tokens.query, keys, values, pattern=rules.pattern, **call)
    else:
        result = selective_attention(
            tokens.query,
            keys,
            values,
            selection=rules.selection,
            selection_query=tokens.selection_query,
            selection_key=selection_keys,
            strength=rules.strength,
            tau=rules.tau,
            return_f=rules.return_f,
            return_memory=rules.return_memory,
            **call,
        )
    return result if isinstance(result, Attention) else Attention(result)


def _one_or_each(until: Tensor) -> Tensor:
    """[B, P, M] as `visible_until` wants it: [B, M] where all heads agree."""
    return until[:, 0] if until.shape[1] == 1 else until
