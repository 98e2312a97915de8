"""Attention through a layer of the cache, and the same budgets in an ordinary full forward.

attend         new queries after what the layer keeps: one (decoding), or many (a prompt, a draft)
attend_whole   whole sequences with no cache: every row sees what it would have seen in decoding
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf

from selattn.cache import compiled
from selattn.cache.decode import decode
from selattn.cache.entries import Entries, starts
from selattn.cache.evict import evict
from selattn.cache.order import Order, Strip
from selattn.cache.policies import Policy
from selattn.cache.slots import SlotLayer
from selattn.cache.tokens import Rules, Tokens
from selattn.errors import SelattnError
from selattn.ops import Attention, Sequences, causal_attention, selective_attention
from selattn.ops.patterns import pattern_visible
from selattn.ops.request import Request
from selattn.ops.tile import Tile, compute_dtype, head_logits, selected, visible

PIECE = 512  # queries of a prompt that are served at once
DRAFT = 128  # tokens that can be taken back
STRIP = 128  # queries whose logits are held at once for the eviction order


def attend(layer: SlotLayer, tokens: Tokens, rules: Rules) -> Attention:
    """New tokens attend to what the layer keeps and to each other, and are kept, as if they had come one by one."""
    batch, count = tokens.query.shape[0], tokens.query.shape[2]
    if torch.is_grad_enabled() and tokens.key.requires_grad:
        raise SelattnError("a cache would cut gradients off: run under torch.no_grad(), or without a cache")
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
        return _piece(layer, tokens, rules, keep_draft=layer.record_past)
    # A long prompt in pieces: memory follows the budget and the piece. What may be taken back is the last piece.
    draft = min(count, DRAFT) if layer.record_past else 0
    borders = [*range(0, count - draft, PIECE), count - draft, count]
    outputs = [
        _piece(layer, tokens.cut(begin, end), rules, keep_draft=layer.record_past and end == count).output
        for begin, end in itertools.pairwise(borders)
        if begin < end
    ]
    return Attention(outputs[0] if len(outputs) == 1 else torch.cat(outputs, -2))


def attend_whole(
    tokens: Tokens,
    sequences: Sequences | None,
    rules: Rules,
    budget: int | None = None,
    policy: Policy | None = None,
) -> Attention:
    """Whole sequences. With a budget each row sees what it would have seen in decoding. Has gradients."""
    limits: dict[str, Any] = {"sequences": sequences, "window": rules.window}
    batch, groups, count = tokens.key.shape[:3]
    if sequences is None:
        positions = torch.arange(count, device=tokens.key.device).expand(batch, count)
    else:
        positions = sequences.positions.masked_fill(~sequences.real, -1).expand(batch, count)
    if rules.selection is not None and rules.pattern is not None:  # which the selective operator takes as a mask
        limits["attn_mask"] = _position_mask(positions, count, rules._replace(window=None), tokens.query.shape[1])
    if budget is None or policy is None or not policy.evicts:
        return _operator(tokens, tokens.key, tokens.value, tokens.selection_key, rules, limits)
    if policy.per_head and tokens.selection_key is not None:
        raise SelattnError(f"the policy {policy.name!r} evicts for each head: a separate bilinear form belongs to none")
    none = _none(tokens, rules, groups if policy.per_head else 1)
    entries = none.append(tokens.key, tokens.value, positions, tokens.selection_key)
    order, _ = _order(entries, tokens, rules, budget, policy, history=False)
    limits["visible_until"] = _one_or_each(order.until)
    return _operator(tokens, tokens.key, tokens.value, tokens.selection_key, rules, limits)


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


def _piece(layer: SlotLayer, tokens: Tokens, rules: Rules, keep_draft: bool) -> Attention:
    """Some tokens at once: who leaves when, attention with that, and what is kept goes back into the slots."""
    before = layer.take()
    real = torch.ones_like(tokens.key[:, 0, :, 0], dtype=torch.bool) if tokens.real is None else tokens.real
    positions = (layer.length[:, None] + real.cumsum(-1) - 1).masked_fill(~real, -1)
    entries = before.append(tokens.key, tokens.value, positions, tokens.selection_key)
    order = Order(entries.until, entries.state, entries.score)
    scores = None
    if layer.budget is not None:
        order, scores = _order(entries, tokens, rules, layer.budget, layer.policy, history=keep_draft)
    rules = rules._replace(return_f=rules.return_f or keep_draft)
    result = _over_entries(entries, tokens, rules, order.until if layer.budget is not None else None)
    state = order.state if result.state is None else result.state
    done = Entries(
        entries.keys, entries.values, entries.positions, order.until, state, order.score, entries.selection_keys
    )
    layer.length += real.sum(-1)
    layer.seen += positions.shape[-1]
    if not keep_draft:
        layer.put(done)
        return result
    if not layer.history:
        layer.history = [(before.state, before.score)]
    for row in range(positions.shape[-1]):
        # The state after a row is F of the next one; without the shift, of the row itself.
        at = row if rules.selection is not None and not rules.selection.shift else row + 1
        state_then = state if result.f is None or at >= result.f.shape[-2] else result.f[..., at, :]
        layer.history.append((state_then, order.score if scores is None else scores[row]))
    layer.entries = done
    return result


def _order(
    entries: Entries, tokens: Tokens, rules: Rules, budget: int, policy: Policy, history: bool
) -> tuple[Order, Tensor | None]:
    """The eviction order over the new tokens: by the compiled library, or strip by strip."""
    before = Order(entries.until, entries.state, entries.score)
    if compiled.makes_order(policy, tokens, rules):
        return compiled.order_of(policy, budget, tokens, rules, entries.keys, entries.positions, before, history)
    request = _request(entries, tokens, rules)
    heads, groups, count = tokens.query.shape[1], tokens.key.shape[1], tokens.query.shape[2]
    selecting = [] if rules.selection is None else [head // (heads // groups) for head in rules.selection.heads]
    if tokens.selection_query is not None:
        selecting = [0] * rules.masks(tokens)  # a separate form belongs to no head; there is one order for all
    order = before
    selects = request.selection is not None and (policy.needs_weights or policy.needs_selection)
    past, scores = entries.size - count, []
    with torch.no_grad():
        for r0 in range(0, count, STRIP):
            r1 = min(count, r0 + STRIP)
            size = past + r1
            t = Tile(r0, r1, 0, size)
            seen = visible(request, t)
            strip = Strip(
                entries.positions[:, :size],
                head_logits(request, t).masked_fill(~seen, -torch.inf) if policy.needs_weights else None,
                selected(request, t, seen) if selects else None,
                (heads, groups),
                selecting if selects else [],
                r1 - r0,
                request.selection is None or request.selection.shift,
            )
            found, after = evict(policy, budget, strip, Order(*(x[..., :size] for x in order)), history)
            order = Order(*(torch.cat([new, old[..., size:]], -1) for new, old in zip(found, order, strict=True)))
            if after is not None:
                scores.append(nnf.pad(after, (0, entries.size - size)))
    return order, torch.cat(scores) if scores else None


def _request(entries: Entries, tokens: Tokens, rules: Rules) -> Request:
    """The new tokens over all entries, with no regard to who leaves during them."""
    query = tokens.query
    return Request(
        query,
        entries.keys,
        entries.values,
        scale=rules.scale_of(query),
        start=starts(entries.positions),
        mask=_position_mask(entries.positions, query.shape[-2], rules, query.shape[1]),
        selection=rules.selection,
        selection_query=tokens.selection_query,
        selection_key=entries.selection_keys,
        strength=rules.strength_of(query),
    )


def _over_entries(entries: Entries, tokens: Tokens, rules: Rules, until: Tensor | None) -> Attention:
    """The operator over entries, each of which is gone from row `until`; gives the state, too."""
    count = tokens.query.shape[-2]
    mask = _position_mask(entries.positions, count, rules, tokens.query.shape[1])
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


def _position_mask(positions: Tensor, count: int, rules: Rules, heads: int) -> Tensor | None:
    """[B, 1 or H, n, E] what a window or pattern shows: entries are not where their tokens were, so by position."""
    if rules.window is None and rules.pattern is None:
        return None
    i, j = positions[:, -count:, None], positions[:, None, :]
    seen = torch.ones_like(i == j)[:, None]
    if rules.window is not None:
        seen = seen & (i - j < rules.window)[:, None]
    if rules.pattern is not None:
        seen = seen & pattern_visible(rules.pattern, i, j, heads)
    return seen
