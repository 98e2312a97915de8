"""The parts of one rectangle of the attention matrix: what is visible in it, its logits, its S.

A tile is rows r0:r1 of the queries by columns c0:c1 of the keys. The reference takes the whole matrix as one tile, the
chunked backend goes strip by strip, so both mean the same by "visible", "logit" and "allowed to select".
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from selattn.ops.request import Request
from selattn.ops.rules import compute_dtype, pattern_visible
from selattn.ops.selection import constrain
from selattn.ops.sequences import positions


class Tile(NamedTuple):
    """Rows r0:r1 of the queries and columns c0:c1 of the keys."""

    r0: int
    r1: int
    c0: int
    c1: int


def whole(request: Request) -> Tile:
    """The tile that is the whole matrix."""
    return Tile(0, request.query.shape[-2], 0, request.key.shape[-2])


def cut(x: Tensor, t: Tile) -> Tensor:
    """The tile of a [.., N or 1, M or 1] tensor that broadcasts over the matrix."""
    rows = slice(None) if x.shape[-2] == 1 else slice(t.r0, t.r1)
    cols = slice(None) if x.shape[-1] == 1 else slice(t.c0, t.c1)
    return x[..., rows, cols]


def visible(request: Request, t: Tile) -> Tensor:
    """[B or 1, H or 1, n, m] bool: start_i <= j <= i < until_j, inside the window, the pattern and the mask."""
    device = request.query.device
    i = torch.arange(request.offset + t.r0, request.offset + t.r1, device=device)[:, None]
    j = torch.arange(t.c0, t.c1, device=device)
    seen = (j <= i)[None, None]
    if request.start is not None:
        begin = request.start[:, request.offset + t.r0 : request.offset + t.r1, None]
        real = request.start[:, t.c0 : t.c1] <= j
        seen = seen & ((j >= begin) & real[:, None, :])[:, None]
    if request.until is not None:
        seen = seen & (i < _each_head(request, request.until[..., t.c0 : t.c1]).unsqueeze(-2))
    if request.rules.window is not None or request.rules.pattern is not None:
        # By positions in the sequence, without padding. Keys of other sequences are invisible already.
        at_i, at_j = i[None], j[None, None]  # [B or 1, n, 1] and [B or 1, 1, m]
        if request.start is not None:
            at = positions(request.start)
            at_i, at_j = at[:, request.offset + t.r0 : request.offset + t.r1, None], at[:, None, t.c0 : t.c1]
        if request.rules.window is not None:
            seen = seen & (at_i - at_j < request.rules.window)[:, None]
        if request.rules.pattern is not None:
            seen = seen & pattern_visible(request.rules.pattern, at_i, at_j, request.query.shape[1])
    if request.mask is not None:
        seen = seen & cut(request.mask, t)
    if request.bias is not None:
        seen = seen & (cut(request.bias, t) != -torch.inf)
    return seen


def may_select(request: Request, t: Tile, seen: Tensor) -> Tensor:
    """[B or 1, S or 1, n, m] bool: where S may differ from 0. `seen` is `visible` of the same tile."""
    selection = request.rules.selection
    assert selection is not None
    i = torch.arange(request.offset + t.r0, request.offset + t.r1, device=seen.device)[:, None]
    j = torch.arange(t.c0, t.c1, device=seen.device)
    first = (j == 0)[None] if request.start is None else request.start[:, t.c0 : t.c1] == j
    return selection.allowed(seen_by_selection(request, seen), i == j, first[:, None, None, :])


def seen_by_selection(request: Request, seen: Tensor) -> Tensor:
    """[B or 1, S or 1, n, m]: what the selecting heads see, of what all heads see."""
    assert request.rules.selection is not None
    if seen.shape[1] == 1:
        return seen
    if request.selection_query is not None:
        return by_mask(seen, request.masks).any(2)  # a separate form may select what any head that follows it sees
    return seen[:, list(request.rules.selection.heads)]


def products(query: Tensor, key: Tensor) -> Tensor:
    """query key^T with grouped heads: [B, H, n, D] and [B, G, m, D] to [B, H, n, m], keys not repeated."""
    return (by_group(query, key.shape[1]) @ key.mT).view(*query.shape[:-1], key.shape[-2])


def by_group(x: Tensor, groups: int) -> Tensor:
    """[B, H, n, d] to [B, G, (H / G) * n, d]: the query heads that share a key-value head become rows of one matrix."""
    if x.shape[1] == groups:
        return x
    rows = x.shape[1] // groups * x.shape[2]  # not -1: that cannot be told of a batch of 0
    return x.reshape(x.shape[0], groups, rows, x.shape[-1])


def by_mask(x: Tensor, masks: int) -> Tensor:
    """[B, H, n, m] to [B, S, H / S, n, m]: the heads that follow one selection mask, together."""
    return x.unflatten(1, (masks, -1))


def soft_capped(logits: Tensor, softcap: float | None) -> Tensor:
    """cap * tanh(logits / cap), as Gemma 2 does it; unchanged without a cap."""
    return logits if softcap is None else torch.tanh(logits / softcap) * softcap


def head_logits(request: Request, t: Tile) -> Tensor:
    """[B, H, n, m] logits of all heads, after scale, soft cap and bias; before F and masks."""
    dtype = compute_dtype(request.query.dtype)
    query, key = request.query[..., t.r0 : t.r1, :].to(dtype), request.key[..., t.c0 : t.c1, :].to(dtype)
    logits = soft_capped(products(query, key) * request.scale, request.rules.softcap)
    return logits if request.bias is None else logits + cut(request.bias, t).to(dtype)


def selecting_logits(request: Request, t: Tile) -> Tensor:
    """[B, S, n, m] the logits that S is made of: the selecting heads', or the separate bilinear form."""
    assert request.rules.selection is not None
    dtype, rows, cols = compute_dtype(request.query.dtype), slice(t.r0, t.r1), slice(t.c0, t.c1)
    if request.selection_query is not None and request.selection_key is not None:
        query, key = request.selection_query[..., rows, :].to(dtype), request.selection_key[..., cols, :].to(dtype)
        return query @ key.mT * separate_scale(request)
    heads, shared = list(request.rules.selection.heads), request.query.shape[1] // request.key.shape[1]
    query = request.query[:, heads, rows].to(dtype)
    key = request.key[:, [head // shared for head in heads], cols].to(dtype)
    logits = soft_capped(query @ key.mT * request.scale, request.rules.softcap)
    if request.bias is None:
        return logits
    bias = request.bias[:, heads] if request.bias.shape[1] > 1 else request.bias
    return logits + cut(bias, t).to(dtype)


def selected(request: Request, t: Tile, seen: Tensor) -> Tensor:
    """[B, S, n, m] the constrained S of a tile."""
    assert request.rules.selection is not None
    allowed = may_select(request, t, seen)
    return constrain(selecting_logits(request, t), allowed, request.rules.selection.relu, request.strength)


def separate_scale(request: Request) -> float:
    """The separate bilinear form has no scale, cap or bias of its own but 1 / sqrt(its size)."""
    assert request.selection_query is not None
    return request.selection_query.shape[-1] ** -0.5


def _each_head(request: Request, x: Tensor) -> Tensor:
    """[B, 1 or G, m] to [B, 1 or H, m]."""
    groups, heads = request.key.shape[1], request.query.shape[1]
    return x if x.shape[1] == 1 or groups == heads else x.repeat_interleave(heads // groups, 1)
