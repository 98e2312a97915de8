"""The eviction order and a step of decoding in plain PyTorch: what every backend has that does not override them.

The order goes strip by strip for the logits and row by row for the evictions. A step works on tensors of fixed shape,
so that it compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as nnf

from selattn.ops.backends.tile import Tile, by_group, head_logits, products, selected, soft_capped, visible
from selattn.ops.eviction import (
    Kept,
    Order,
    OrderRequest,
    Ranking,
    StepRequest,
    Stored,
    orders_of_masks,
    smallest_f,
    stored,
    victim,
)
from selattn.ops.request import Request, Tokens
from selattn.ops.rules import PositionBias, pattern_visible, position_bias, position_mask, step_bias
from selattn.ops.selection import constrain
from selattn.ops.selection import step as accumulate_step
from selattn.ops.sequences import starts

STRIP = 128  # queries whose logits are held at once


class Strip(NamedTuple):
    """n queries, which are the last n of the M entries."""

    positions: Tensor  # [B, M] int64, -1 for padding and empty places
    logits: Tensor | None  # [B, H, n, M], -inf where invisible; only for policies that need weights
    selected: Tensor | None  # [B, S, n, M] the constrained S as if nothing was evicted; None in a standard model
    heads: tuple[int, int]  # H, G
    selecting: list[slice]  # [S] the orders that keep what each mask may select
    rows: int  # n
    shift: bool


EvictRows = Callable[[Ranking, int, Strip, Order, bool], tuple[Order, Tensor | None]]


def order(request: OrderRequest, evict: EvictRows | None = None) -> tuple[Order, Tensor | None]:
    """The order after the queries; with `history` also the scores after each of them, [n, B, P, M].

    `evict` finds the evictions in a strip, whose logits are given: `row_by_row`, or the compiled library's loop.
    """
    evict = evict or row_by_row
    tokens, rules, policy = request.tokens, request.rules, request.policy
    heads, groups, count = tokens.query.shape[1], request.keys.shape[1], tokens.query.shape[2]
    selects = rules.selection is not None and (policy.needs_weights or policy.needs_f)
    call = Request(
        tokens.query,
        request.keys,
        request.keys,  # no values are mixed
        rules._replace(window=None, pattern=None, bias=None),  # they are in mask and bias
        start=starts(request.positions),
        mask=position_mask(request.positions, count, rules, heads),
        bias=position_bias(rules, tokens.query, request.positions) if selects or policy.needs_weights else None,
        selection_query=tokens.selection_query,
        selection_key=request.selection_keys,
    )
    separate, orders = tokens.selection_query is not None, request.before.until.shape[1]
    selecting = orders_of_masks(rules, separate, call.masks, orders, heads)
    state, scores = request.before, []
    entries = request.positions.shape[-1]
    past = entries - count
    with torch.no_grad():
        for r0 in range(0, count, STRIP):
            r1 = min(count, r0 + STRIP)
            size = past + r1
            t = Tile(r0, r1, 0, size)
            seen = visible(call, t)
            strip = Strip(
                request.positions[:, :size],
                head_logits(call, t).masked_fill(~seen, -torch.inf) if policy.needs_weights else None,
                selected(call, t, seen) if selects else None,
                (heads, groups),
                selecting if selects else [],
                r1 - r0,
                rules.selection is None or rules.selection.shift,
            )
            part, after = evict(policy, request.budget, strip, Order(*(x[..., :size] for x in state)), request.history)
            state = Order(*(torch.cat([new, old[..., size:]], -1) for new, old in zip(part, state, strict=True)))
            if after is not None:
                scores.append(nnf.pad(after, (0, entries - size)))
    return state, torch.cat(scores) if scores else None


def row_by_row(policy: Ranking, budget: int, strip: Strip, before: Order, history: bool) -> tuple[Order, Tensor | None]:
    """The order after the strip; with `history` also the scores after each of its rows."""
    until, F, score = (x.clone() for x in before)
    _, orders, entries = until.shape
    heads, groups = strip.heads
    masks = 0 if strip.selected is None else strip.selected.shape[1]
    first, scores = entries - strip.rows, []
    index = torch.arange(entries, device=until.device)
    begins = torch.where(strip.positions == 0, index, -1).cummax(-1).values  # where a row's document began
    for r in range(strip.rows):
        i = first + r
        real = strip.positions[:, None, i] >= 0
        kept = (strip.positions[:, None] >= 0) & (until > i) & (index < i)
        kept = kept & (index >= begins[:, None, i, None])
        f = smallest_f(F, orders, heads) if masks and policy.needs_f else torch.zeros_like(score[:, :1])
        early = policy.leaves(Kept(strip.positions[:, None].masked_fill(~kept, -1), score, f, budget))
        if early is not None:
            early = early & kept & real[..., None]
            until, kept = until.masked_fill(early, i), kept & ~early
        place = victim(policy, Kept(strip.positions[:, None].masked_fill(~kept, -1), score, f, budget))
        full = real & (kept.sum(-1) >= budget)
        gone = full[..., None] & (index == place[..., None])
        until = until.masked_fill(gone, i)
        kept = (kept & ~gone) | (index == i)
        own = kept  # what may be selected
        if orders > 1 and masks:
            own = torch.stack([kept[:, which].any(1) for which in strip.selecting], 1)
        S = None if strip.selected is None else strip.selected[:, :, r].masked_fill(~own, 0.0)
        if policy.needs_weights and strip.logits is not None:
            logits = strip.logits[:, :, r]
            if S is not None:
                own_f = F if strip.shift else F + S
                logits = logits - own_f.repeat_interleave(heads // masks, 1)
            seen = kept if orders == 1 else kept.repeat_interleave(heads // groups, 1)
            weights = logits.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
            mean = weights.unflatten(1, (orders, -1)).mean(2)
            score = torch.where(real[..., None], policy.update(score, mean), score)
        if S is not None:
            F = torch.where(real[..., None], F + S, F)
        scores.append(score)
    return Order(until, F, score), torch.stack(scores) if history else None


def step(request: StepRequest) -> Tensor:
    """The output [B, H, 1, Dv] of the query; the evicted token is overwritten."""
    if request.rows is not None:
        return _step_of_rows(request, request.rows)
    orders = request.slots.position.shape[1]
    if orders > 1 and request.rules.selection is not None:
        return torch.cat([_step(_order(request, p, orders)) for p in range(orders)], 1)
    return _step(request)


def _step_of_rows(request: StepRequest, rows: Tensor) -> Tensor:
    """Some rows of a pool, copied out and back."""
    pool = stored(request.slots)
    part = Stored(*(None if x is None else x[rows] for x in pool))  # type: ignore[arg-type]
    output = step(request._replace(slots=part, rows=None))
    for x, changed in zip(pool, part, strict=True):
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
    kept = Stored(*(None if x is None else part(x) for x in stored(slots)))  # type: ignore[arg-type]
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
    own = step_bias(rules, query, position, request.length)
    if own is not None:
        own = own[..., :-1]  # the new token has a slot
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
    """[B, P] where the new token goes: the first empty slot, or the evicted token's."""
    slots, policy = request.slots, request.policy
    position = slots.position[..., : request.used]
    empty = position < 0
    first = empty.to(torch.uint8).argmax(-1)
    if request.budget is None:
        return first
    score = slots.score if policy.needs_weights else torch.zeros_like(slots.position, dtype=slots.f.dtype)
    reads = policy.needs_f and slots.f.shape[1]
    f = slots.f[:, :, 0].amin(1, keepdim=True) if reads else torch.zeros_like(score[:, :1])
    evicted = victim(policy, Kept(slots.position, score, f, request.budget))
    return torch.where((position >= 0).sum(-1) < request.budget, first, evicted)


def _write(request: StepRequest, slot: Tensor, now: Tensor) -> None:
    """Put the new token into its slot; nothing of the old one stays. A row that sits out is left as it is."""
    slots, tokens, real = request.slots, request.tokens, request.tokens.real

    def put(to: Tensor, dim: int, at: Tensor, new: Tensor | float) -> None:
        if real is None:
            to.scatter_(dim, at, new)
            return
        old, takes_part = to.gather(dim, at), real[(..., *[None] * (at.ndim - 2))]
        to.scatter_(dim, at, torch.where(takes_part, new, old).to(to.dtype))

    at = slot.expand(-1, slots.keys.shape[1])[..., None, None]
    put(slots.keys, 2, at.expand(-1, -1, 1, slots.keys.shape[-1]), tokens.key)
    put(slots.values, 2, at.expand(-1, -1, 1, slots.values.shape[-1]), tokens.value)
    here = slot[..., None]
    put(slots.position, -1, here, now[:, None].expand_as(here).to(slots.position.dtype))
    put(slots.f, -1, here[:, None].expand(-1, slots.f.shape[1], -1, -1), 0.0)
    if request.policy.needs_weights:
        put(slots.score, -1, here, 0.0)
    if slots.selection_keys is not None and tokens.selection_key is not None:
        form = slots.selection_keys
        put(form, 2, slot[:, :1, None, None].expand(-1, form.shape[1], 1, form.shape[-1]), tokens.selection_key)


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
