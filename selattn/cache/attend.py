"""Attention through a layer of the cache.

attend   new queries after what the layer keeps: one (decoding), or many (a prompt, a draft)
defer    whole sequences, which have attended without a cache, are kept by an empty layer as soon as somebody looks
"""

from __future__ import annotations

import itertools
from functools import partial

import torch

from selattn.cache import gradients
from selattn.cache.pieces import attend_piece, by_position
from selattn.cache.slots import SlotLayer
from selattn.ops.backends import dispatch
from selattn.ops.backends.base import Backend
from selattn.ops.order import StepRequest
from selattn.ops.request import NOTHING, Attention, AuxRequest, Tokens
from selattn.ops.rules import Rules

PIECE = 512  # queries of a prompt that are served at once
DRAFT = 128  # tokens that can be taken back


def attend(
    layer: SlotLayer, tokens: Tokens, rules: Rules, wanted: AuxRequest = NOTHING, backend: str | Backend = "auto"
) -> Attention:
    """New tokens attend to what the layer keeps and to each other, and are kept, as if they had come one by one.

    There are no gradients: to ask for one is an error. The columns of F and of the weights are positions in the
    sequence. A token that has left has no weight, and its F is NaN: it is gone with the token.
    """
    gradients.refuse_transforms()
    if gradients.needed(tokens):
        with torch.no_grad():
            result = attend(layer, *gradients.detached(tokens, rules), wanted, backend)
        return gradients.refuse_backward(result, tokens)
    if layer.deferred is not None:
        layer.settle()
    wanted = wanted.of(rules)
    count = tokens.query.shape[2]
    if layer.pool is None:
        layer.allocate(tokens, rules)
    layer.storage.check_like(tokens, layer.batch)
    plain = not (any(wanted) or rules.dropout_p or layer.record_past)
    together = layer.storage.position.shape[1] == 1 or rules.selection is None or layer.storage.stands_alone
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
    used = layer.take_slot(tokens.real)
    request = StepRequest(tokens, rules, layer.storage, layer.index, layer.length, layer.policy, layer.budget, used)
    output = dispatch.step(request, backend)
    layer.advance(1, tokens.real)
    return Attention(output)


def defer(layer: SlotLayer, tokens: Tokens, rules: Rules, backend: str | Backend = "auto") -> None:
    """An empty layer takes whole sequences that have attended without it; what is kept is found when it is needed.

    A forward pass that has gradients costs nothing more for a cache that nobody reads.
    """
    tokens, rules = gradients.detached(tokens, rules)
    layer.deferred = partial(attend, tokens=tokens, rules=rules._replace(dropout_p=0.0), backend=backend)
