"""Selective attention in strips with PyTorch alone: linear memory, forward and backward.

F depends on earlier queries of the same column only. That decides both directions:

    forward   row strips, top to bottom: all keys of a few queries. F after one strip starts the next,
              and a strip holds whole rows, so its softmax needs no second pass.
    backward  column strips: all queries of a few keys. A strip holds whole columns, so F and its reverse running sum
              dS[k, j] = sum over i > k of dF[i, j] are each one cumulative sum, and nothing of F was stored.

The backward pass, with P the weights, dP = dO V^T and delta = rowsum(dO * O), for each head h:

    dA^h = P^h (dP^h - delta^h)
    dF   = - sum over h of dA^h + (gradients of F and M that came from outside)
    dA of the selecting head += dS where its logit is positive and may select

exp is written exp2(x log2 e): PyTorch's exp falls into a path that is up to 80 times slower where results underflow, as
those of masked keys do.
"""

from __future__ import annotations

from struct import pack
from typing import NamedTuple
from zlib import crc32

import torch
from torch import Tensor

from selattn.ops.autograd import Came, Operator, Saved
from selattn.ops.backends.base import Backend
from selattn.ops.backends.tile import (
    Tile,
    by_group,
    by_mask,
    cut,
    may_select,
    products,
    seen_by_selection,
    selecting_logits,
    separate_scale,
    soft_capped,
    visible,
)
from selattn.ops.request import Attention, Request
from selattn.ops.rules import compute_dtype
from selattn.ops.selection import (
    accumulate,
    accumulate_backward,
    constrain,
    constrain_backward,
    memory,
    memory_backward,
)

LOG2E = 1.4426950408889634
# A strip of this many logits (8 MB in fp32) was the fastest to within 5% for N from 1,024 to 4,096; see benchmarks/.
STRIP_ELEMENTS = 1 << 21
STRIP_WIDTHS = (32, 128)
DROPOUT_BLOCK = 128


class Chunked(Backend):
    """Strips of the matrix in plain PyTorch."""

    name = "chunked"
    plain = False

    def refusal(self, request: Request) -> str | None:
        return "it never holds the attention weights of more than one strip" if request.wanted.weights else None

    def attend(self, request: Request) -> Attention:
        # The seed is drawn here, outside of the operator, so that checkpointing and torch.manual_seed govern it.
        seed = torch.randint(1 << 31, (), dtype=torch.int64) if request.rules.dropout_p else None
        return OPERATOR.attend(request.without_padding()._replace(seed=seed))


class ChunkedResults(NamedTuple):
    """The results: [B, H, N, Dv], [B, H, N], and F, M and the final F, each empty if it was not asked for."""

    output: Tensor
    lse: Tensor
    f: Tensor
    memory: Tensor
    final_f: Tensor


class _Logits(NamedTuple):
    """The logits of one tile and what its backward pass needs."""

    shifted: Tensor  # [B, H, n, m] logits - F, -inf where invisible
    capped: Tensor | None  # [B, H, n, m] after the soft cap, before the bias
    selecting: Tensor | None  # [B, S, n, m] the logits that S is made of
    allowed: Tensor | None  # where they may select
    seen: Tensor
    f: Tensor | None
    final_f: Tensor | None


def forward(request: Request) -> ChunkedResults:
    """Row strips, top to bottom."""
    query, key, value = _inputs(request)
    batch, heads, rows = query.shape[:3]
    keys, masks = key.shape[2], request.masks
    output = query.new_zeros(batch, heads, rows, value.shape[3])
    lse = query.new_full((batch, heads, rows), torch.inf)
    f = query.new_zeros(batch, masks, rows, keys) if request.wanted.f else query.new_empty(0)
    running = query.new_zeros(batch, masks, keys) if request.initial_f is None else request.initial_f.clone()
    kept = query.new_zeros(batch, masks, rows) if request.wanted.memory else query.new_empty(0)

    height = strip_width(batch * heads * keys)
    for r0 in range(0, rows, height):
        r1 = min(rows, r0 + height)
        t = Tile(r0, r1, _first_column(request, r0, r1), request.offset + r1)
        if t.c0 >= t.c1:  # padding only
            continue
        logits = _logits(request, t, query, key, running[..., t.c0 : t.c1])
        if logits.f is not None and logits.final_f is not None:
            running[..., t.c0 : t.c1] = logits.final_f
            if request.wanted.f:
                f[..., r0:r1, t.c0 : t.c1] = logits.f
            if request.wanted.memory:
                kept[..., r0:r1] = memory(logits.f, seen_by_selection(request, logits.seen), request.rules.tau)
        weights = logits.shifted
        top = weights.amax(-1, keepdim=True).clamp_(min=torch.finfo(weights.dtype).min)
        weights.sub_(top).mul_(LOG2E).exp2_()
        total, sees = weights.sum(-1, keepdim=True), logits.seen.any(-1, keepdim=True)
        lse[..., r0:r1] = torch.where(sees, top + total.log(), torch.inf).squeeze(-1)
        if request.rules.dropout_p:
            weights.mul_(dropout_scale(request, t))
        mixed = _of_keys(weights, value[..., t.c0 : t.c1, :])
        output[..., r0:r1, :] = mixed / torch.where(sees, total, 1.0)
    return ChunkedResults(output.to(request.query.dtype), lse, f, kept, running)


def shapes(request: Request) -> ChunkedResults:
    """Empty tensors of the results' shapes."""
    query, keys, masks = request.query, request.key.shape[2], request.masks
    batch, heads, rows = query.shape[:3]
    exact = query.new_empty(0, dtype=compute_dtype(query.dtype))
    return ChunkedResults(
        output=query.new_empty(batch, heads, rows, request.value.shape[3]),
        lse=exact.new_empty(batch, heads, rows),
        f=exact.new_empty(batch, masks, rows, keys) if request.wanted.f else exact,
        memory=exact.new_empty(batch, masks, rows) if request.wanted.memory else exact.new_empty(0),
        final_f=exact.new_empty(batch, masks, keys),
    )


def backward(request: Request, saved: Saved, came: Came, needed: frozenset[str]) -> dict[str, Tensor | None]:
    """Column strips."""
    query, key, value = _inputs(request)
    output, lse = saved["output"], saved["lse"]
    d_output, d_f, d_memory, d_final_f = (came[name] for name in ("output", "f", "memory", "final_f"))
    d_out = torch.zeros_like(output) if d_output is None else d_output
    d_out = d_out.to(query.dtype)
    if request.start is not None:  # whatever comes back to padding
        d_out = d_out.masked_fill((lse == torch.inf).unsqueeze(-1), 0.0)
    delta = (d_out * output).sum(-1, keepdim=True)
    dq, dk, dv = (x.new_zeros(x.shape) for x in (query, key, value))
    dbias = query.new_zeros(request.bias.shape) if "bias" in needed and request.bias is not None else None
    sq, sk = (None if x is None else x.to(query.dtype) for x in (request.selection_query, request.selection_key))
    dsq, dsk = (None if x is None else x.new_zeros(x.shape) for x in (sq, sk))
    d_initial_f = None
    if request.initial_f is not None:
        d_initial_f = request.initial_f.new_zeros(request.initial_f.shape)
        if d_final_f is not None:
            d_initial_f += d_final_f

    width = strip_width(query.shape[0] * query.shape[1] * query.shape[2])
    for c0 in range(0, key.shape[2], width):
        c1 = min(key.shape[2], c0 + width)
        t = Tile(max(0, c0 - request.offset), _last_row(request, c0, c1, d_f is not None), c0, c1)
        if t.r0 >= t.r1:
            continue
        rows, cols = slice(t.r0, t.r1), slice(c0, c1)
        begin = None if request.initial_f is None else request.initial_f[..., cols]
        logits = _logits(request, t, query, key, begin)
        weights = logits.shifted.sub_(lse[..., rows, None]).mul_(LOG2E).exp2_()
        d_weights = products(d_out[..., rows, :], value[..., cols, :])
        if request.rules.dropout_p:
            scale = dropout_scale(request, t)
            d_weights.mul_(scale)
            dv[..., cols, :] = _into_keys(weights * scale, d_out[..., rows, :], value)
        else:
            dv[..., cols, :] = _into_keys(weights, d_out[..., rows, :], value)
        d_logits = weights.mul_(d_weights.sub_(delta[..., rows, :]))

        if logits.f is not None and logits.selecting is not None and logits.allowed is not None:
            selection = request.rules.selection
            assert selection is not None
            dF = by_mask(d_logits, request.masks).sum(2).neg_()
            if d_f is not None:
                dF += d_f[..., rows, cols]
            if d_memory is not None:
                selecting_sees = seen_by_selection(request, logits.seen)
                dF += memory_backward(d_memory[..., rows], logits.f, selecting_sees, request.rules.tau)
            dS, d_begin = accumulate_backward(dF, None if d_final_f is None else d_final_f[..., cols], selection.shift)
            if d_initial_f is not None:
                d_initial_f[..., cols] = d_begin
            d_selecting = constrain_backward(dS, logits.selecting, logits.allowed, selection.relu, request.strength)
            if sq is not None and sk is not None and dsq is not None and dsk is not None:
                d_selecting *= separate_scale(request)
                dsq[..., rows, :] += _of_keys(d_selecting, sk[..., cols, :])
                dsk[..., cols, :] = _into_keys(d_selecting, sq[..., rows, :], sk)
            else:
                for s, head in enumerate(selection.heads):
                    d_logits[:, head] += d_selecting[:, s]

        if dbias is not None:
            part = cut(dbias, t)
            part += d_logits.sum_to_size(part.shape)
        if logits.capped is not None and request.rules.softcap is not None:
            d_logits *= 1 - (logits.capped / request.rules.softcap) ** 2
        d_logits *= request.scale
        dq[..., rows, :] += _of_keys(d_logits, key[..., cols, :])
        dk[..., cols, :] = _into_keys(d_logits, query[..., rows, :], key)
    return {
        "query": dq,
        "key": dk,
        "value": dv,
        "selection_query": dsq,
        "selection_key": dsk,
        "bias": dbias,
        "initial_f": d_initial_f,
    }


def strip_width(length: int) -> int:
    """How many rows (or columns) of `length` logits make one strip."""
    low, high = STRIP_WIDTHS
    return max(low, min(high, STRIP_ELEMENTS // max(length, 1) // low * low))


def dropout_scale(request: Request, t: Tile) -> Tensor:
    """[B, H, n, m], 0 for a dropped weight and 1 / (1 - p) for a kept one.

    Row strips and column strips must drop the same weights, so the matrix is drawn in fixed square blocks, each from a
    generator seeded by its place. PyTorch's CPU generator uses only the lower 32 bits of a seed, so the call's seed and
    the place are hashed into those.
    """
    assert request.seed is not None
    device, size, seed = request.query.device, DROPOUT_BLOCK, int(request.seed)
    shape = (*request.query.shape[:2], size, size)
    rows = []
    for i in range(t.r0 // size, -(-t.r1 // size)):
        row = []
        for j in range(t.c0 // size, -(-t.c1 // size)):
            generator = torch.Generator(device).manual_seed(crc32(pack("qqq", seed, i, j)))
            row.append(torch.rand(shape, device=device, generator=generator))
        rows.append(torch.cat(row, -1))
    drawn = torch.cat(rows, -2)
    top, left = t.r0 % size, t.c0 % size
    kept = drawn[..., top : top + t.r1 - t.r0, left : left + t.c1 - t.c0] >= request.rules.dropout_p
    return kept.to(compute_dtype(request.query.dtype)) / (1 - request.rules.dropout_p)


def _inputs(request: Request) -> tuple[Tensor, Tensor, Tensor]:
    dtype = compute_dtype(request.query.dtype)
    return request.query.to(dtype), request.key.to(dtype), request.value.to(dtype)


def _logits(request: Request, t: Tile, query: Tensor, key: Tensor, initial_f: Tensor | None) -> _Logits:
    """Logits minus F for one tile. `initial_f` is that of the tile's columns."""
    seen = visible(request, t)
    rows, cols = slice(t.r0, t.r1), slice(t.c0, t.c1)
    logits = products(query[..., rows, :], key[..., cols, :]).mul_(request.scale)
    capped = None
    if request.rules.softcap is not None:
        logits = capped = soft_capped(logits, request.rules.softcap)
    if request.bias is not None:
        logits = logits + cut(request.bias, t)
    elif capped is not None:
        logits = capped.clone()
    if request.rules.selection is None:
        return _Logits(logits.masked_fill_(~seen, -torch.inf), capped, None, None, seen, None, None)

    if request.selection_query is None:
        selecting = logits[:, list(request.rules.selection.heads)]
    else:
        selecting = selecting_logits(request, t)
    allowed = may_select(request, t, seen)
    S = constrain(selecting, allowed, request.rules.selection.relu, request.strength)
    F, after = accumulate(S, initial_f, request.rules.selection.shift)
    # One mask for all heads goes in with F, which is smaller than the logits by the number of heads. NaN - inf is NaN.
    shared = seen.shape[1] == 1
    by_mask(logits, request.masks).sub_((F.masked_fill(~seen, torch.inf) if shared else F).unsqueeze(2))
    if not shared:
        logits.masked_fill_(~seen, -torch.inf)
    return _Logits(logits, capped, selecting, allowed, seen, F, after)


def _of_keys(weights: Tensor, keys: Tensor) -> Tensor:
    """sum over keys of weights keys: [B, H, n, d]."""
    return (by_group(weights, keys.shape[1]) @ keys).view(*weights.shape[:3], keys.shape[-1])


def _into_keys(weights: Tensor, rows: Tensor, like: Tensor) -> Tensor:
    """sum over queries (and the query heads that share a key-value head) of weights^T rows: [B, G, m, d]."""
    return by_group(weights, like.shape[1]).mT @ by_group(rows, like.shape[1])


def _first_column(request: Request, r0: int, r1: int) -> int:
    """The first key that rows r0:r1 can see; 0 when F is wanted, which is defined for all keys."""
    first = 0
    if request.wanted.f or request.query.shape[0] == 0:
        return first
    if request.rules.window is not None:
        rank = request.ranks()
        least = rank[:, request.offset + r0, None] - request.rules.window + 1
        first = max(first, int(torch.searchsorted(rank, least).min()))
    if request.start is not None:
        first = max(first, int(request.start[:, request.offset + r0 : request.offset + r1].min()))
    return first


def _last_row(request: Request, c0: int, c1: int, whole_column: bool) -> int:
    """One past the last row that can see a key of c0:c1; all rows when F's own gradient is given."""
    last = request.key.shape[2]
    if whole_column or request.query.shape[0] == 0:
        return request.query.shape[2]
    if request.rules.window is not None:
        rank = request.ranks()
        last = min(last, int(torch.searchsorted(rank, rank[:, c1 - 1, None] + request.rules.window).max()))
    if request.until is not None:
        last = min(last, int(request.until[..., c0:c1].max()))
    if request.start is not None and last > 0:
        rows = torch.arange(1, last + 1, device=request.start.device)
        last = int(((request.start[:, :last] < c1) * rows).max())
    return min(request.query.shape[2], last - request.offset)


OPERATOR = Operator(
    "chunked",
    results=ChunkedResults,
    forward=forward,
    shapes=shapes,
    backward=backward,
    saved=("output", "lse"),
    gradients=("query", "key", "value", "selection_query", "selection_key", "bias", "initial_f"),
)
