"""Attention through a layer of the cache, and the same budgets in an ordinary full forward.

attend         new queries after what the layer keeps: one (decoding), or many (a prompt, a draft)
defer          whole sequences are kept by an empty layer, later
attend_whole   whole sequences with no cache: every row sees what it would have seen in decoding
"""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch import Tensor

from selattn.cache import gradients
from selattn.cache.decode import decode
from selattn.cache.entries import Entries
from selattn.cache.slots import SlotLayer
from selattn.errors import SelattnError
from selattn.eviction import Policy
from selattn.ops import Attention, AuxRequest, Sequences
from selattn.ops.backends import dispatch
from selattn.ops.backends.base import Backend
from selattn.ops.order import NEVER, Order, OrderRequest
from selattn.ops.precision import compute_dtype
from selattn.ops.request import Request
from selattn.ops.rules import Rules, position_mask
from selattn.ops.sequences import starts
from selattn.ops.tokens import Tokens

PIECE = 512  # queries of a prompt that are served at once
DRAFT = 128  # tokens that can be taken back
NOTHING = AuxRequest()


def attend(
    layer: SlotLayer, tokens: Tokens, rules: Rules, wanted: AuxRequest = NOTHING, backend: str | Backend = "auto"
) -> Attention:
    """New tokens attend to what the layer keeps and to each other, and are kept, as if they had come one by one.

    There are no gradients: to ask for one is an error. The columns of F and of the weights are positions in the
    sequence. A token that has left has no weight, and its F is NaN: it is gone with the token.
    """
    if gradients.needed(tokens):
        with torch.no_grad():
            result = attend(layer, *gradients.detached(tokens, rules), wanted, backend)
        return gradients.refuse_backward(result, tokens)
    if layer.deferred is not None:
        layer.settle()
    wanted = wanted.of(rules)
    batch, count = tokens.query.shape[0], tokens.query.shape[2]
    if not layer.is_initialized:
        layer.allocate(tokens.key, tokens.value, rules.masks(tokens.selection_query), tokens.selection_key)
    assert layer.keys is not None
    if layer.keys.shape[0] != batch:
        raise SelattnError(f"this cache holds a batch of {layer.keys.shape[0]}, not {batch}: begin with a new cache")
    plain = not (any(wanted) or rules.dropout_p or layer.record_past)
    together = layer.position.shape[1] == 1 or rules.selection is None
    if count == 1 and tokens.real is None and plain and together and layer.entries is None:
        return decode(layer, tokens, rules, backend)
    if any(wanted):
        result, positions = _piece(layer, tokens, rules, wanted, backend, keep_draft=layer.record_past)
        result = result._replace(final_f=result.final_f if wanted.final_f else None)
        return _by_position(result, positions, int(layer.length.max()))
    # A long prompt in pieces: memory follows the budget and the piece. What may be taken back is the last piece.
    draft = min(count, DRAFT) if layer.record_past else 0
    borders = [*range(0, count - draft, PIECE), count - draft, count]
    outputs = [
        _piece(layer, tokens.cut(begin, end), rules, wanted, backend, layer.record_past and end == count)[0].output
        for begin, end in itertools.pairwise(borders)
        if begin < end
    ]
    return Attention(outputs[0] if len(outputs) == 1 else torch.cat(outputs, -2))


def defer(layer: SlotLayer, tokens: Tokens, rules: Rules, backend: str | Backend = "auto") -> None:
    """An empty layer takes whole sequences, for which `attend_whole` does the work; what is kept is found when needed.

    A forward pass that has gradients costs nothing more for a cache that nobody reads.
    """
    tokens, rules = gradients.detached(tokens, rules)
    layer.deferred = partial(attend, tokens=tokens, rules=rules._replace(dropout_p=0.0), backend=backend)


def attend_whole(
    tokens: Tokens,
    sequences: Sequences | None,
    rules: Rules,
    budget: int | None = None,
    policy: Policy | None = None,
    wanted: AuxRequest = NOTHING,
    backend: str | Backend = "auto",
) -> Attention:
    """Whole sequences. With a budget each row sees what it would have seen in decoding. Has gradients.

    Where a budget is in force, `evicted_at` says the row from which each key is gone, `NEVER` if it stays.
    """
    batch, groups, count = tokens.key.shape[:3]
    request = Request(
        tokens.query,
        tokens.key,
        tokens.value,
        rules,
        wanted,
        start=None if sequences is None else sequences.start,
        selection_query=tokens.selection_query,
        selection_key=tokens.selection_key,
    )
    if policy is None or not in_force(budget, policy):
        return dispatch.attend(request, backend)
    if policy.per_head and tokens.selection_key is not None:
        raise SelattnError(f"the policy {policy.name!r} evicts for each head: a separate bilinear form belongs to none")
    if sequences is None:
        positions = torch.arange(count, device=tokens.key.device).expand(batch, count)
    else:
        positions = sequences.positions.masked_fill(~sequences.real, -1).expand(batch, count)
    none = _none(tokens, rules, groups if policy.per_head else 1)
    entries = none.append(tokens.key, tokens.value, positions, tokens.selection_key)
    order, _ = _order(entries, tokens, rules, budget, policy, backend, history=False)
    return dispatch.attend(request._replace(until=order.until), backend)._replace(evicted_at=order.until)


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
        torch.zeros(batch, rules.masks(tokens.selection_query), 0, dtype=exact, device=device),
        torch.zeros(batch, orders, 0, dtype=exact, device=device),
        None if tokens.selection_key is None else tokens.selection_key[..., :0, :],
    )


def _piece(
    layer: SlotLayer, tokens: Tokens, rules: Rules, wanted: AuxRequest, backend: str | Backend, keep_draft: bool
) -> tuple[Attention, Tensor]:
    """Some tokens at once: who leaves when, attention with that, and what is kept goes back into the slots.

    The result is over entries; their positions [B, E] come with it.
    """
    before = layer.take()
    real = torch.ones_like(tokens.key[:, 0, :, 0], dtype=torch.bool) if tokens.real is None else tokens.real
    positions = (layer.length[:, None] + real.cumsum(-1) - 1).masked_fill(~real, -1)
    entries = before.append(tokens.key, tokens.value, positions, tokens.selection_key)
    order = Order(entries.until, entries.f, entries.score)
    scores = None
    if in_force(layer.budget, layer.policy):
        order, scores = _order(entries, tokens, rules, layer.budget, layer.policy, backend, history=keep_draft)
    wanted = wanted._replace(f=wanted.f or keep_draft, final_f=True)
    until = order.until if in_force(layer.budget, layer.policy) else None
    result = dispatch.attend(_over_entries(entries, tokens, rules, wanted, until), backend)
    f = order.f if result.final_f is None else result.final_f
    done = Entries(entries.keys, entries.values, entries.positions, order.until, f, order.score, entries.selection_keys)
    layer.length += real.sum(-1)
    layer.seen += positions.shape[-1]
    if not keep_draft:
        layer.put(done)
        return result, entries.positions
    if not layer.history:
        layer.history = [(before.f, before.score)]
    for row in range(positions.shape[-1]):
        # What a row leaves behind is F of the next one; without the shift, of the row itself.
        at = row if rules.selection is not None and not rules.selection.shift else row + 1
        f_then = f if result.f is None or at >= result.f.shape[-2] else result.f[..., at, :]
        layer.history.append((f_then, order.score if scores is None else scores[row]))
    layer.entries = done
    return result, entries.positions


def _by_position(result: Attention, positions: Tensor, length: int) -> Attention:
    """What is over entries at `positions` [B, E], over the positions 0 to length - 1."""
    at = positions.where(positions >= 0, length)  # padding goes to one place more, which is cut off

    def spread(x: Tensor | None, gone: float) -> Tensor | None:
        if x is None:
            return None
        wide, here = x.new_full((*x.shape[:-1], length + 1), gone), at[:, None] if x.ndim == 3 else at[:, None, None]
        return wide.scatter(-1, here.expand_as(x), x)[..., :length]

    f, final_f = spread(result.f, torch.nan), spread(result.final_f, torch.nan)
    return result._replace(f=f, final_f=final_f, weights=spread(result.weights, 0.0))


def _order(
    entries: Entries,
    tokens: Tokens,
    rules: Rules,
    budget: int | None,
    policy: Policy,
    backend: str | Backend,
    history: bool,
) -> tuple[Order, Tensor | None]:
    """The eviction order over the new tokens."""
    before = Order(entries.until, entries.f, entries.score)
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
    return dispatch.order(request, backend)


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
        rules._replace(window=None, pattern=None),  # they are in the mask
        wanted,
        start=start,
        until=until,
        mask=mask,
        selection_query=tokens.selection_query,
        selection_key=entries.selection_keys,
        initial_f=entries.f if rules.selection is not None and entries.size > count else None,
    )
