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
from selattn.errors import SelattnError
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
    batch, count = tokens.query.shape[0], tokens.query.shape[2]
    if not layer.is_initialized:
        layer.allocate(tokens, rules)
    assert layer.keys is not None
    if layer.keys.shape[0] != batch:
        raise SelattnError(f"this cache holds a batch of {layer.keys.shape[0]}, not {batch}: begin with a new cache")
    if layer.active is not None:
        tokens = tokens._replace(real=layer.taking_part(tokens))
    plain = not (any(wanted) or rules.dropout_p or layer.record_past)
    together = layer.position.shape[1] == 1 or rules.selection is None or layer.stands_alone
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
    """One query for each row: the token that leaves is overwritten, all shapes are fixed."""
    eager = not torch.compiler.is_compiling()
    if layer.policy.leaves_early:
        layer.drop_early()
    assert layer.keys is not None
    if layer.grows:
        # A number of Python's, not of a tensor: a compiled step has it in its guards, and is made anew to grow.
        layer.filled = layer.filled_after(tokens.real) if eager else layer.filled + 1
        layer.make_room(layer.filled, fixed=not eager)
    elif not eager:
        layer.filled = layer.slots
    elif layer.filled < layer.slots:
        layer.filled = min(layer.slots, int(layer.seen.max()) + 1)
    # Before the storage is full, an eager step leaves its empty end out; a compiled one has one shape for all steps.
    used = layer.filled if eager else layer.slots
    request = StepRequest(tokens, rules, layer, layer.policy, layer.budget, used)
    output = dispatch.step(request, backend)
    layer.advance(1, tokens.real)
    return Attention(output)


def defer(layer: SlotLayer, tokens: Tokens, rules: Rules, backend: str | Backend = "auto") -> None:
    """An empty layer takes whole sequences that have attended without it; what is kept is found when it is needed.

    A forward pass that has gradients costs nothing more for a cache that nobody reads.
    """
    tokens, rules = gradients.detached(tokens, rules)
    layer.deferred = partial(attend, tokens=tokens, rules=rules._replace(dropout_p=0.0), backend=backend)
