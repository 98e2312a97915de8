"""Queries through a layer of the cache: one for each row (a step of decoding), or many (a prompt, a draft).

attend   new queries after what the layer keeps
defer    whole sequences, which have attended without a cache, are kept by an empty layer as soon as it is read

Gradients end at a cache: what earlier tokens brought is stored without its history.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch
from torch import Tensor

from selattn.cache.layer import Entries, Moment, SlotLayer
from selattn.cache.order import in_force
from selattn.errors import SelattnError
from selattn.ops.autograd import in_transform
from selattn.ops.backends import dispatch
from selattn.ops.backends.base import Backend
from selattn.ops.eviction import NEVER, Order, OrderRequest, StepRequest
from selattn.ops.request import NOTHING, Attention, AuxOutput, AuxRequest, Request, Tokens
from selattn.ops.rules import Rules, position_bias, position_mask
from selattn.ops.sequences import starts

PIECE = 512  # queries of a prompt that are served at once
DRAFT = 128  # tokens that can be taken back


def attend(
    layer: SlotLayer, tokens: Tokens, rules: Rules, wanted: AuxRequest = NOTHING, backend: str | Backend = "auto"
) -> Attention:
    """New tokens attend to what the layer keeps and to each other, and are kept, as if they had come one by one.

    There are no gradients: to ask for one is an error. The columns of F and of the weights are positions in the
    sequence. An evicted token has no weight, and its F is NaN: it is gone with the token.
    """
    if in_transform():  # what lies in a cache has to outlive the call
        raise SelattnError(
            "a cache cannot be filled inside a transform of torch.func: pass the whole text in one forward, "
            "without past_key_values"
        )
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tokens):
        with torch.no_grad():
            result = attend(layer, *_detached(tokens, rules), wanted, backend)
        return _refuse_backward(result, tokens)
    if layer.deferred is not None:
        layer.settle()
    if any(wanted):
        wanted = wanted.of(rules)
    count = tokens.query.shape[2]
    pool = layer.pool if layer.pool is not None else layer.allocate(tokens, rules)
    batch = (pool.length if layer.rows is None else layer.rows).shape[0]
    if tokens.key.shape[0] != batch:
        raise layer.wrong_batch(tokens.key.shape[0])
    plain = not (any(wanted) or rules.dropout_p or layer.record_past)
    together = rules.selection is None or pool.position.shape[1] == 1 or pool.stands_alone
    if count == 1 and plain and together and layer.entries is None:
        return decode(layer, tokens, rules, backend)
    if any(wanted):
        result, positions = attend_piece(layer, tokens, rules, wanted, backend, keep_draft=layer.record_past)
        if not wanted.final_f:
            result = result._replace(aux=result.aux._replace(final_f=None))
        return by_position(result, positions, int(layer.length.max()))
    # A long prompt in pieces: memory follows the budget and the piece. What may be taken back is the last piece.
    draft = min(count, DRAFT) if layer.record_past else 0
    borders = [*range(0, count - draft, PIECE), count - draft, count]
    outputs = []
    for begin, end in itertools.pairwise(borders):
        if begin < end:
            keep = layer.record_past and end == count
            outputs.append(attend_piece(layer, tokens.cut(begin, end), rules, wanted, backend, keep)[0].output)
    return Attention(outputs[0] if len(outputs) == 1 else torch.cat(outputs, -2))


def decode(layer: SlotLayer, tokens: Tokens, rules: Rules, backend: str | Backend = "auto") -> Attention:
    """One query for each row: the evicted token is overwritten, and all shapes are fixed."""
    if layer.policy.leaves_early:
        layer.drop_early()
    used, pool = layer.take_slot(tokens.real)
    length = pool.length if layer.index is None else pool.length[layer.index]
    request = StepRequest(tokens, rules, pool, layer.index, length, layer.policy, layer.budget, used)
    output = dispatch.step(request, backend)
    layer.advance(1, tokens.real)
    return Attention(output)


def defer(layer: SlotLayer, tokens: Tokens, rules: Rules, backend: str | Backend = "auto") -> None:
    """An empty layer takes whole sequences that have attended without it; evictions are computed when it is read.

    A training forward pays nothing for a cache that is never read.
    """
    tokens, rules = _detached(tokens, rules)
    layer.deferred = partial(attend, tokens=tokens, rules=rules._replace(dropout_p=0.0), backend=backend)


# -- many queries -----------------------------------------------------------------------------------------------------


def attend_piece(
    layer: SlotLayer, tokens: Tokens, rules: Rules, wanted: AuxRequest, backend: str | Backend, keep_draft: bool
) -> tuple[Attention, Tensor]:
    """Some tokens at once: the eviction order, attention by it, and the kept tokens go back into the slots.

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
        # The state after a row is F of the next one; without the shift, of the row itself.
        at = row if rules.selection is not None and not rules.selection.shift else row + 1
        f_then = f if rows_f is None or at >= rows_f.shape[-2] else rows_f[..., at, :]
        layer.history.append(Moment(f_then, order.score if scores is None else scores[row], seen + row + 1))
    layer.entries = done
    return result, entries.positions


def by_position(result: Attention, positions: Tensor, length: int) -> Attention:
    """Results over entries at `positions` [B, E], over the positions 0 to length - 1."""
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
    """The eviction order while the new tokens come."""
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


# -- gradients --------------------------------------------------------------------------------------------------------


class _Cut(torch.autograd.Function):
    """A result as it is, whose gradient is refused."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, *inputs: Tensor) -> Tensor:
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise SelattnError(
            "a cache cuts gradients off: pass the whole text in one forward, without past_key_values, to learn from it"
        )


def _detached(tokens: Tokens, rules: Rules) -> tuple[Tokens, Rules]:
    """The same without history."""
    strength = rules.strength.detach() if isinstance(rules.strength, Tensor) else rules.strength
    return Tokens(*(None if x is None else x.detach() for x in tokens)), rules._replace(strength=strength)  # type: ignore[arg-type]


def _refuse_backward(result: Attention, tokens: Tokens) -> Attention:
    """The result, whose backward pass is an error and not a part of the gradient."""
    if torch.compiler.is_compiling():  # which would make the backward pass now
        raise SelattnError("a compiled step with a cache has no gradients: run it under torch.no_grad()")
    inputs = [x for x in tokens if x is not None]

    def cut(x: Tensor | None) -> Any:
        return None if x is None else _Cut.apply(x, *inputs)

    return Attention(cut(result.output), AuxOutput(*map(cut, result.aux)), cut(result.evicted_at))
