"""One step of decoding through a layer of the cache, by the backend that is asked for."""

from __future__ import annotations

import torch

from selattn.cache.slots import SlotLayer
from selattn.ops import Attention
from selattn.ops.backends import dispatch
from selattn.ops.backends.base import Backend
from selattn.ops.order import StepRequest
from selattn.ops.rules import Rules
from selattn.ops.tokens import Tokens


def decode(layer: SlotLayer, tokens: Tokens, rules: Rules, backend: str | Backend = "auto") -> Attention:
    """One query: the token that leaves is overwritten, all shapes are fixed."""
    eager = not torch.compiler.is_compiling()
    if layer.policy.leaves_early:
        layer.drop_early()
    grows = layer.grows
    if grows:
        # A number of Python's, not of a tensor: a compiled step has it in its guards, and is made anew to grow.
        layer.filled += 1
        layer.make_room(layer.filled, fixed=not eager)
    assert layer.keys is not None
    # Before the storage is full, an eager step leaves its empty end out; a compiled one has one shape for all steps.
    used = layer.keys.shape[-2]
    if eager:
        used = layer.filled if grows else min(used, int(layer.seen) + 1)
    output = dispatch.step(StepRequest(tokens, rules, layer, layer.policy, layer.budget, used), backend)
    layer.length += 1
    layer.seen += 1
    return Attention(output)
