"""The eviction order in plain PyTorch: strip by strip for the logits, row by row for who leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as nnf

from selattn.ops.backends.tile import Tile, head_logits, selected, visible
from selattn.ops.order import Kept, Order, OrderRequest, Ranking, orders_of_masks, smallest_f, victim
from selattn.ops.request import Request
from selattn.ops.rules import position_bias, position_mask
from selattn.ops.sequences import starts

STRIP = 128  # queries whose logits are held at once


class Strip(NamedTuple):
    """n queries, which are the last n of the M entries."""

    positions: Tensor  # [B, M] int64, -1 for padding and empty places
    logits: Tensor | None  # [B, H, n, M], -inf where invisible; only for policies that need weights
    selected: Tensor | None  # [B, S, n, M] the constrained S as if nothing had left; None in a standard model
    heads: tuple[int, int]  # H, G
    selecting: list[slice]  # [S] the orders that keep what each mask may select
    rows: int  # n
    shift: bool


Rows = Callable[[Ranking, int, Strip, Order, bool], tuple[Order, Tensor | None]]


def order(request: OrderRequest, rows: Rows | None = None) -> tuple[Order, Tensor | None]:
    """The order after the queries; with `history` also the scores after each of them, [n, B, P, M].

    `rows` finds who leaves in a strip, whose logits are given: `row_by_row`, or the compiled library's loop.
    """
    rows = rows or row_by_row
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
    found, scores = request.before, []
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
            part, after = rows(policy, request.budget, strip, Order(*(x[..., :size] for x in found)), request.history)
            found = Order(*(torch.cat([new, old[..., size:]], -1) for new, old in zip(part, found, strict=True)))
            if after is not None:
                scores.append(nnf.pad(after, (0, entries - size)))
    return found, torch.cat(scores) if scores else None


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
        leaves = victim(policy, Kept(strip.positions[:, None].masked_fill(~kept, -1), score, f, budget))
        full = real & (kept.sum(-1) >= budget)
        gone = full[..., None] & (index == leaves[..., None])
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
