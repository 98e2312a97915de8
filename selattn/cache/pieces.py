"""Many queries at once through a layer of the cache: a piece of a prompt, or a draft."""

from __future__ import annotations

import torch
from torch import Tensor

from selattn.cache.entries import Entries
from selattn.cache.order import in_force
from selattn.cache.slots import Moment, SlotLayer
from selattn.ops.backends import dispatch
from selattn.ops.backends.base import Backend
from selattn.ops.order import NEVER, Order, OrderRequest
from selattn.ops.request import Attention, AuxRequest, Request, Tokens
from selattn.ops.rules import Rules, position_bias, position_mask
from selattn.ops.sequences import starts


def attend_piece(
    layer: SlotLayer, tokens: Tokens, rules: Rules, wanted: AuxRequest, backend: str | Backend, keep_draft: bool
) -> tuple[Attention, Tensor]:
    """Some tokens at once: who leaves when, attention with that, and what is kept goes back into the slots.

    The result is over entries; their positions [B, E] come with it.
    """
    before = layer.take()
    real = torch.ones_like(tokens.key[:, 0, :, 0], dtype=torch.bool) if tokens.real is None else tokens.real
    positions = (layer.length[:, None] + real.cumsum(-1) - 1).masked_fill(~real, -1)
    entries = before.append(tokens.key, tokens.value, positions, tokens.selection_key)
    order, scores, until = Order(entries.until, entries.f, entries.score), None, None
    if in_force(layer.budget, layer.policy):
        order, scores = dispatch.order(_evictions(layer, entries, tokens, rules, keep_draft), backend)
        until = order.until
    wanted = wanted._replace(f=wanted.f or keep_draft, final_f=True)
    result = dispatch.attend(_over_entries(entries, tokens, rules, wanted, until), backend)
    f = order.f if result.aux.final_f is None else result.aux.final_f
    done = Entries(entries.keys, entries.values, entries.positions, order.until, f, order.score, entries.selection_keys)
    seen = layer.seen.clone()
    layer.advance(positions.shape[-1], real)
    if not keep_draft:
        layer.put(done)
        return result, entries.positions
    rows_f = result.aux.f
    if not layer.history:
        layer.history = [Moment(before.f, before.score, seen)]
    for row in range(positions.shape[-1]):
        # What a row leaves behind is F of the next one; without the shift, of the row itself.
        at = row if rules.selection is not None and not rules.selection.shift else row + 1
        f_then = f if rows_f is None or at >= rows_f.shape[-2] else rows_f[..., at, :]
        layer.history.append(Moment(f_then, order.score if scores is None else scores[row], seen + row + 1))
    layer.entries = done
    return result, entries.positions


def by_position(result: Attention, positions: Tensor, length: int) -> Attention:
    """What is over entries at `positions` [B, E], over the positions 0 to length - 1."""
    at = positions.where(positions >= 0, length)  # padding goes to one place more, which is cut off

    def spread(x: Tensor | None, gone: float) -> Tensor | None:
        if x is None:
            return None
        wide, here = x.new_full((*x.shape[:-1], length + 1), gone), at[:, None] if x.ndim == 3 else at[:, None, None]
        return wide.scatter(-1, here.expand_as(x), x)[..., :length]

    aux = result.aux
    f, final_f = spread(aux.f, torch.nan), spread(aux.final_f, torch.nan)
    return result._replace(aux=aux._replace(f=f, final_f=final_f, weights=spread(aux.weights, 0.0)))


def _evictions(layer: SlotLayer, entries: Entries, tokens: Tokens, rules: Rules, history: bool) -> OrderRequest:
    """The question who leaves while the new tokens come."""
    return OrderRequest(
        tokens,
        rules,
        entries.keys,
        entries.selection_keys,
        entries.positions,
        layer.policy,
        NEVER if layer.budget is None else layer.budget,
        Order(entries.until, entries.f, entries.score),
        history,
    )


def _over_entries(entries: Entries, tokens: Tokens, rules: Rules, wanted: AuxRequest, until: Tensor | None) -> Request:
    """Attention over entries, each of which is gone from row `until`."""
    count = tokens.query.shape[-2]
    mask = position_mask(entries.positions, count, rules, tokens.query.shape[1])
    start = None
    some = until is not None or mask is not None
    if some or bool((entries.positions[:, :1] != 0).any()) or bool((entries.positions < 0).any()):
        start = starts(entries.positions)
    return Request(
        tokens.query,
        entries.keys,
        entries.values,
        rules._replace(window=None, pattern=None, bias=None),  # they are in mask and bias
        wanted,
        start=start,
        until=until,
        mask=mask,
        bias=position_bias(rules, tokens.query, entries.positions),
        selection_query=tokens.selection_query,
        selection_key=entries.selection_keys,
        initial_f=entries.f if rules.selection is not None and entries.size > count else None,
    )
