"""One step of decoding in plain PyTorch, on tensors of fixed shape, so that it compiles."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as nnf

from selattn.ops.backends.tile import by_group, products, soft_capped
from selattn.ops.order import Kept, StepRequest, victim
from selattn.ops.request import Tokens
from selattn.ops.rules import PositionBias, Rules, pattern_visible, position_bias
from selattn.ops.selection import constrain
from selattn.ops.selection import step as accumulate_step


def step(request: StepRequest) -> Tensor:
    """The output [B, H, 1, Dv] of the query; the evicted token is overwritten."""
    if request.rows is not None:
        return _step_of_rows(request, request.rows)
    orders = request.slots.position.shape[1]
    if orders > 1 and request.rules.selection is not None:
        return torch.cat([_step(_order(request, p, orders)) for p in range(orders)], 1)
    return _step(request)


class _Part(NamedTuple):
    """What a layer holds of one eviction order; as `Slots`, whose tensors are written to."""

    keys: Tensor
    values: Tensor
    position: Tensor
    f: Tensor
    score: Tensor
    selection_keys: Tensor | None


def _step_of_rows(request: StepRequest, rows: Tensor) -> Tensor:
    """Some rows of a pool, copied out and back."""
    slots = request.slots
    all_of = (slots.keys, slots.values, slots.position, slots.f, slots.score, slots.selection_keys)
    part = _Part(*(None if x is None else x[rows] for x in all_of))  # type: ignore[arg-type]
    output = step(request._replace(slots=part, rows=None))
    for x, changed in zip(all_of, part, strict=True):
        if x is not None and changed is not None:
            x[rows] = changed
    return output


def _order(request: StepRequest, p: int, orders: int) -> StepRequest:
    """One order of several that have nothing to do with each other, alone: its heads and its masks."""
    slots, tokens, rules, selection = request.slots, request.tokens, request.rules, request.rules.selection
    assert selection is not None
    assert slots.f.shape[2] == 1, "masks that select in the orders of others are not decoded step by step"

    def part(x: Tensor) -> Tensor:
        share = x.shape[1] // orders
        return x[:, p * share : (p + 1) * share]

    first, masks = p * (tokens.query.shape[1] // orders), slots.f.shape[1] // orders
    if tokens.selection_query is None:
        heads = tuple(head - first for head in selection.heads[p * masks : (p + 1) * masks])
        rules = rules._replace(selection=replace(selection, head=heads))
    own = rules.bias
    if own is not None:
        whole: PositionBias = own
        rules = rules._replace(bias=lambda i, j: x if (x := whole(i, j)).shape[1] == 1 else part(x))
    form = (None if x is None else part(x) for x in (tokens.selection_query, tokens.selection_key))
    mine = Tokens(part(tokens.query), part(tokens.key), part(tokens.value), tokens.real, *form)
    stored = None if slots.selection_keys is None else part(slots.selection_keys)
    kept = _Part(
        part(slots.keys),
        part(slots.values),
        part(slots.position),
        part(slots.f),
        part(slots.score),
        stored,
    )
    return request._replace(tokens=mine, rules=rules, slots=kept)


def _step(request: StepRequest) -> Tensor:
    slots, rules, used = request.slots, request.rules, request.used
    query, now = request.tokens.query, request.length[:, None]  # the new token's position
    _write(request, _free_slot(request), now)
    keys, values, position = slots.keys[..., :used, :], slots.values[..., :used, :], slots.position[..., :used]

    seen = position >= 0
    if rules.window is not None:
        seen = seen & (now[:, None] - position < rules.window)
    seen = seen.unsqueeze(-2)  # [B, P, 1, C]
    heads, orders = query.shape[1], position.shape[1]
    if orders > 1:  # each head sees what its own order keeps
        seen = seen.repeat_interleave(heads // orders, 1)
    if rules.pattern is not None:
        shown = pattern_visible(rules.pattern, now[:, None], position, heads)  # [B, 1 or H, P, C]
        if orders > 1:
            head = torch.arange(heads, device=query.device)
            shown = shown.expand(-1, heads, -1, -1)[:, head, head // (heads // orders), None]
        seen = seen & shown
    own = _bias(request, position, now)
    if own is not None:
        seen = seen & (own != -torch.inf)
    bias = torch.zeros((), dtype=slots.f.dtype, device=query.device)
    if rules.selection is not None:
        bias = -_select(request, keys, position, seen, now, own)  # [B, S, 1, C]
        if bias.shape[1] > 1:
            bias = bias.repeat_interleave(heads // bias.shape[1], 1)
    if own is not None:
        bias = bias + own
    output = _mix(request, keys, values, bias.masked_fill(~seen, -torch.inf))
    return output if request.tokens.real is None else output.masked_fill(~request.tokens.real[:, None, :, None], 0.0)


def _free_slot(request: StepRequest) -> Tensor:
    """[B, P] where the new token goes: the first empty slot, or that of the token which leaves."""
    slots, policy = request.slots, request.policy
    position = slots.position[..., : request.used]
    empty = position < 0
    first = empty.to(torch.uint8).argmax(-1)
    if request.budget is None:
        return first
    score = slots.score if policy.needs_weights else torch.zeros_like(slots.position, dtype=slots.f.dtype)
    reads = policy.needs_f and slots.f.shape[1]
    f = slots.f[:, :, 0].amin(1, keepdim=True) if reads else torch.zeros_like(score[:, :1])
    leaves = victim(policy, Kept(slots.position, score, f, request.budget))
    return torch.where((position >= 0).sum(-1) < request.budget, first, leaves)


def _write(request: StepRequest, slot: Tensor, now: Tensor) -> None:
    """Put the new token into its slot; nothing of the old one stays. A row that sits out is left as it is."""
    slots, tokens, real = request.slots, request.tokens, request.tokens.real

    def put(stored: Tensor, dim: int, at: Tensor, new: Tensor | float) -> None:
        if real is None:
            stored.scatter_(dim, at, new)
            return
        old, takes_part = stored.gather(dim, at), real[(..., *[None] * (at.ndim - 2))]
        stored.scatter_(dim, at, torch.where(takes_part, new, old).to(stored.dtype))

    at = slot.expand(-1, slots.keys.shape[1])[..., None, None]
    put(slots.keys, 2, at.expand(-1, -1, 1, slots.keys.shape[-1]), tokens.key)
    put(slots.values, 2, at.expand(-1, -1, 1, slots.values.shape[-1]), tokens.value)
    here = slot[..., None]
    put(slots.position, -1, here, now[:, None].expand_as(here).to(slots.position.dtype))
    put(slots.f, -1, here[:, None].expand(-1, slots.f.shape[1], -1, -1), 0.0)
    if request.policy.needs_weights:
        put(slots.score, -1, here, 0.0)
    if slots.selection_keys is not None and tokens.selection_key is not None:
        stored = slots.selection_keys
        at = slot[:, :1, None, None].expand(-1, stored.shape[1], 1, stored.shape[-1])
        put(stored, 2, at, tokens.selection_key)


def _bias(request: StepRequest, position: Tensor, now: Tensor) -> Tensor | None:
    """[B or 1, H or 1, 1, C] the layer's bias by positions; each head's by the positions of its own order."""
    query, orders = request.tokens.query, position.shape[1]
    if orders == 1:
        return bias_of_slots(request.rules, query, position[:, 0], now)
    each = [bias_of_slots(request.rules, query, position[:, p], now) for p in range(orders)]
    shared, found = query.shape[1] // orders, []
    for p, x in enumerate(each):
        if x is None:
            return None
        found.append(x.expand(-1, query.shape[1], -1, -1)[:, p * shared : (p + 1) * shared])
    return torch.cat(found, 1)


def bias_of_slots(rules: Rules, query: Tensor, position: Tensor, now: Tensor) -> Tensor | None:
    """[B or 1, H or 1, 1, C] the bias of one query at `now` [B, 1] over slots at `position` [B, C]."""
    found = position_bias(rules, query, torch.cat([position.long(), now], -1))
    return None if found is None else found[..., :-1]


def _select(
    request: StepRequest, keys: Tensor, position: Tensor, seen: Tensor, now: Tensor, bias: Tensor | None
) -> Tensor:
    """F of the query [B, S, 1, C]; what it selects is added to the slots' F."""
    slots, tokens, rules, used = request.slots, request.tokens, request.rules, request.used
    selection = rules.selection
    assert selection is not None
    exact = slots.f.dtype
    if tokens.selection_query is not None and slots.selection_keys is not None:
        scale = tokens.selection_query.shape[-1] ** -0.5
        logits = products(tokens.selection_query.to(exact), slots.selection_keys[..., :used, :].to(exact)) * scale
        visible_to_it = seen if seen.shape[1] == 1 else seen.unflatten(1, (logits.shape[1], -1)).any(2)
    else:
        heads = list(selection.heads)
        shared = tokens.query.shape[1] // keys.shape[1]
        chosen = keys[:, [head // shared for head in heads]]
        logits = products(tokens.query[:, heads].to(exact), chosen.to(exact)) * rules.scale_of(tokens.query)
        logits = soft_capped(logits, rules.softcap)
        if bias is not None:
            logits = logits + (bias if bias.shape[1] == 1 else bias[:, heads])
        visible_to_it = seen if seen.shape[1] == 1 else seen[:, heads]
    allowed = selection.allowed(visible_to_it, *((position == x).unsqueeze(-2) for x in (now[:, None], 0)))
    S = constrain(logits, allowed, selection.relu, rules.strength_of(tokens.query))
    F, after = accumulate_step(S, slots.f[..., :used], selection.shift)  # both [B, S, 1, C]: one order for all
    F = F.clone() if selection.shift else F
    slots.f[..., :used] = _unless_out(request, after, slots.f[..., :used])
    return F


def _mix(request: StepRequest, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """softmax(scale Q K^T + bias) V, soft-capped; a policy that lives on attention weights gets them."""
    query, rules, slots, used = request.tokens.query, request.rules, request.slots, request.used
    if not request.policy.needs_weights and rules.softcap is None:
        bias = bias.to(query.dtype) if query.device.type != "cpu" else bias
        return nnf.scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=rules.scale, enable_gqa=True)
    exact = slots.f.dtype
    logits = soft_capped(products(query.to(exact), keys.to(exact)) * rules.scale_of(query), rules.softcap)
    weights = (logits + bias).softmax(-1)  # [B, H, 1, C]
    weights = weights.nan_to_num(0.0)  # of a query to which a pattern shows nothing
    if request.policy.needs_weights:
        mean = weights.squeeze(-2).unflatten(1, (slots.position.shape[1], -1)).mean(2)
        score = slots.score[..., :used]
        slots.score[..., :used] = _unless_out(request, request.policy.update(score, mean), score)
    mixed = by_group(weights, keys.shape[1]) @ values.to(exact)
    return mixed.view(*query.shape[:-1], values.shape[-1]).to(query.dtype)


def _unless_out(request: StepRequest, new: Tensor, old: Tensor) -> Tensor:
    """The new values [B, ...]; the old ones of a row that sits out."""
    real = request.tokens.real
    return new if real is None else torch.where(real[(..., *[None] * (new.ndim - 2))], new, old)
