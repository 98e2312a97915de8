"""Selective attention, plain: the whole matrix, line by line as in the paper. The truth that the others are held to.

Output = softmax(Q K^T / sqrt(d) - F) V, with F = Accumulate(Constrain(S)).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as nnf

from selattn.ops.request import Attention, Request
from selattn.ops.selection import accumulate, constrain, memory
from selattn.ops.tile import (
    by_mask,
    compute_dtype,
    may_select,
    products,
    seen_by_selection,
    selecting_logits,
    soft_capped,
    visible,
    whole,
)


def unavailable() -> str | None:
    """Why this backend cannot run on this machine; None if it can."""
    return None


def refusal(request: Request) -> str | None:
    """Why this backend cannot do what is asked; None if it can. The reference can do everything."""
    return None


def attend(request: Request) -> Attention:
    """See `Request` and `Attention`."""
    dtype = compute_dtype(request.query.dtype)
    query, key, value = (x.to(dtype) for x in (request.query, request.key, request.value))
    seen = visible(request, whole(request))

    logits = soft_capped(products(query, key) * request.scale, request.softcap)
    if request.bias is not None:
        logits = logits + request.bias.to(dtype)

    F, M, state = None, None, None
    if request.selection is not None:
        from_head = request.selection_query is None
        S = logits[:, list(request.selection.heads)] if from_head else selecting_logits(request, whole(request))
        S = constrain(S, may_select(request, whole(request), seen), request.selection.relu, request.strength)
        F, state = accumulate(S, request.state, request.selection.shift)
        logits = (by_mask(logits, request.masks) - F.unsqueeze(2)).flatten(1, 2)
        M = memory(F, seen_by_selection(request, seen), request.tau) if request.return_memory else None

    weights = masked_softmax(logits, seen)
    mixed = nnf.dropout(weights, request.dropout_p) @ value.repeat_interleave(query.shape[1] // value.shape[1], 1)
    return Attention(
        output=mixed.to(request.query.dtype),
        f=F if request.return_f else None,
        memory=M,
        state=state if request.return_state else None,
        weights=weights if request.return_weights else None,
    )


def masked_softmax(logits: Tensor, seen: Tensor) -> Tensor:
    """softmax over what is seen; a row that sees nothing (padding) gets zeros, and zeros as its gradient, not NaN."""
    lowest = torch.finfo(logits.dtype).min
    return torch.softmax(logits.masked_fill(~seen, lowest), -1).masked_fill(~seen, 0.0)
