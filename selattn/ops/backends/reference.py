"""Backends of PyTorch's own operators: the plain reference, and PyTorch's own kernel for standard attention.

`Reference` computes the whole matrix, line by line as in the paper; the other backends are tested against it:

    Output = softmax(Q K^T / sqrt(d) - F) V, with F = Accumulate(Constrain(S)).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as nnf

from selattn.ops.backends.base import Backend
from selattn.ops.backends.tile import (
    by_mask,
    may_select,
    seen_by_selection,
    selecting_logits,
    soft_capped,
    visible,
    whole,
)
from selattn.ops.request import Attention, AuxOutput, Request
from selattn.ops.rules import compute_dtype
from selattn.ops.selection import accumulate, constrain, memory


class Reference(Backend):
    """The whole matrix, line by line as in the paper. It refuses nothing."""

    name = "reference"

    def attend(self, request: Request) -> Attention:
        request = request.without_padding()
        dtype = compute_dtype(request.query.dtype)
        query, shared = request.query.to(dtype), request.query.shape[1] // request.key.shape[1]
        key, value = (x.to(dtype).repeat_interleave(shared, 1) for x in (request.key, request.value))
        seen = visible(request, whole(request))

        logits = soft_capped(query @ key.mT * request.scale, request.rules.softcap)
        if request.bias is not None:
            logits = logits + request.bias.to(dtype)

        F, M, final_f, selection = None, None, None, request.rules.selection
        if selection is not None:
            from_head = request.selection_query is None
            S = logits[:, list(selection.heads)] if from_head else selecting_logits(request, whole(request))
            S = constrain(S, may_select(request, whole(request), seen), selection.relu, request.strength)
            F, final_f = accumulate(S, request.initial_f, selection.shift)
            logits = (by_mask(logits, request.masks) - F.unsqueeze(2)).flatten(1, 2)
            M = memory(F, seen_by_selection(request, seen), request.rules.tau) if request.wanted.memory else None

        weights = masked_softmax(logits, seen)
        mixed = nnf.dropout(weights, request.rules.dropout_p) @ value
        aux = AuxOutput(
            f=F if request.wanted.f else None,
            memory=M,
            final_f=final_f if request.wanted.final_f else None,
            weights=weights if request.wanted.weights else None,
        )
        return Attention(mixed.masked_fill(~seen.any(-1, keepdim=True), 0.0).to(request.query.dtype), aux)


def masked_softmax(logits: Tensor, seen: Tensor) -> Tensor:
    """softmax over what is seen; a row that sees nothing (padding) gets zeros, and zeros as its gradient, not NaN."""
    logits = logits.masked_fill(~seen, -torch.inf).masked_fill(~seen.any(-1, keepdim=True), 0.0)
    return torch.softmax(logits, -1).masked_fill(~seen, 0.0)


class Sdpa(Backend):
    """`torch.nn.functional.scaled_dot_product_attention`, of which it has every restriction."""

    name = "sdpa"

    def refusal(self, request: Request) -> str | None:
        r, rules = request, request.rules
        if rules.selection is not None:
            return "PyTorch's kernel has no F"
        hidden = (r.start, r.until, r.mask, r.bias, rules.window, rules.pattern, rules.softcap)
        if any(x is not None for x in hidden) or r.offset != 0:
            return "it is standard attention with nothing but causality"
        if r.wanted.weights:
            return "PyTorch's kernel does not give its weights"
        if r.scale <= 0:
            return "PyTorch's kernel takes the largest product for the largest logit: the scale must be above 0"
        return None

    def attend(self, request: Request) -> Attention:
        r = request
        output = nnf.scaled_dot_product_attention(
            *(r.query, r.key, r.value),
            dropout_p=r.rules.dropout_p,
            is_causal=True,
            scale=r.scale,
            enable_gqa=r.query.shape[1] != r.key.shape[1],
        )
        return Attention(output)
