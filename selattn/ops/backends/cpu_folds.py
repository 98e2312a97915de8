"""How a call of attention becomes the problems of `csrc/attention/problem.h`, one for each mask and eviction order.

Heads that follow different masks, or see what different orders keep, have nothing to do with each other. So they become
folds: rows of a larger batch, each with its share of the heads, which the library computes side by side. With one mask
and one order there is one fold, and nothing of this costs anything.

S of a fold comes from one of its own heads where that is the selecting one. Else it comes from a selecting form: a
separate one, or the query and key of the selecting head as a form of their own; that costs one more product.

Shapes: as in `selattn.ops.request`, and P folds.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selattn.ops.backends.cpu_library import DTYPES, dense_rows, form_of_type
from selattn.ops.precision import compute_dtype
from selattn.ops.request import Request


class Form(NamedTuple):
    """What selects in each fold, where none of its own heads does."""

    query: Tensor  # [B, P, N, Ds]
    key: Tensor  # [B, P, M, Ds]
    scale: float
    softcap: float
    until: Tensor | None  # [B, P, M] the row from which a key is gone for it; None: as for the heads of the fold
    bias: Tensor | None  # [B, P, N, M]
    heads: Tensor | None  # [P] the selecting heads, if it is heads that select


class Folds(NamedTuple):
    """The shares of the heads."""

    number: int  # P, a multiple of the number of masks
    masks: int  # S, 1 if nothing selects
    repeat: int  # folds, at least 1, that a key-value head has query heads in
    heads: tuple[int, ...]  # [P] the selecting head of each, counted in the fold; below 0: a form selects

    @property
    def form(self) -> bool:
        """Whether a form selects."""
        return self.heads[0] < 0

    @property
    def each(self) -> int:
        """Folds that follow one mask."""
        return self.number // self.masks


def folds_of(r: Request) -> Folds:
    """The shares that the heads of a call have to be in."""
    selection, own_form = r.rules.selection, r.selection_query is not None
    heads, groups, masks = r.query.shape[1], r.key.shape[1], r.masks or 1
    count = math.lcm(masks, 1 if r.until is None else r.until.shape[1])
    share = heads // count
    own: tuple[int, ...] = (-1,) * count
    if selection is None:
        own = (0,) * count
    elif not own_form and count == masks:
        first = (head - fold * share for fold, head in enumerate(selection.heads))
        own = tuple(head if 0 <= head < share else -1 for head in first)
    if min(own) < 0:
        own = (-1,) * count
    return Folds(count, masks, math.lcm(groups, count) // groups, own)


def until_of(r: Request, folds: Folds) -> Tensor | None:
    """[B, P, M] the row from which a key is gone for the heads of a fold."""
    if r.until is None:
        return None
    batch, orders, keys = r.query.shape[0], r.until.shape[1], r.key.shape[2]
    each = r.until.to(torch.int64).expand(batch, orders, keys)
    return each.repeat_interleave(folds.number // orders, 1).contiguous()


def form_of(r: Request, folds: Folds) -> Form | None:
    """What selects in the place of the folds' own heads."""
    selection = r.rules.selection
    if selection is None or not folds.form:
        return None
    until = until_of(r, folds)
    if r.selection_query is not None and r.selection_key is not None:
        query, key = (
            form_of_type(x, r.query).repeat_interleave(folds.each, 1) for x in (r.selection_query, r.selection_key)
        )
        hidden = _hidden(r, folds, until)
        if until is not None:  # it may select what any head of its mask sees
            until = until.unflatten(1, (folds.masks, -1)).amax(2).repeat_interleave(folds.each, 1).contiguous()
        return Form(query, key, query.shape[-1] ** -0.5, 0.0, until, hidden, None)
    heads = torch.tensor(selection.heads).repeat_interleave(folds.each)
    group = heads // (r.query.shape[1] // r.key.shape[1])
    if until is not None:
        until = until[:, heads // (r.query.shape[1] // folds.number)].contiguous()
    bias = r.bias
    if bias is not None:
        bias = (bias[:, heads] if bias.shape[1] > 1 else bias).expand(-1, folds.number, -1, -1)
        bias = bias.expand(r.query.shape[0], folds.number, r.query.shape[2], r.key.shape[2])
    return Form(r.query[:, heads], r.key[:, group], r.scale, r.rules.softcap or 0.0, until, bias, heads)


def form_fields(form: Form | None) -> dict[str, Any]:
    """The fields of the form."""
    if form is None:
        return _NO_FORM
    query, key = dense_rows(form.query), dense_rows(form.key)
    return {
        "form_size": query.shape[-1],
        "form_dtype": DTYPES[query.dtype],
        "form_scale": form.scale,
        "form_softcap": form.softcap,
        "form_query": query,
        "form_key": key,
        "form_query_stride": query,
        "form_key_stride": key,
        "form_until": form.until,
        **bias_fields("form_bias", form.bias),
    }


def bias_fields(name: str, bias: Tensor | None) -> dict[str, Any]:
    """The fields of a bias [B, heads, N, M], or of a gradient; broadcast dimensions have a stride of 0."""
    key = 0 if bias is None else bias.stride(-1)
    return {name: bias, f"{name}_stride": bias, f"{name}_key": key}


_NO_FORM = {
    **dict.fromkeys(("form_query", "form_key", "form_query_stride", "form_key_stride", "form_until")),
    **dict.fromkeys(("form_size", "form_dtype", "form_scale", "form_softcap"), 0),
    **bias_fields("form_bias", None),
}


def whole_bias(r: Request, bias: Tensor, heads: int) -> Tensor:
    """[B, heads, N, M] without a copy, unless it is of another type."""
    exact = bias.to(compute_dtype(r.query.dtype))
    return exact.expand(r.query.shape[0], heads, r.query.shape[2], r.key.shape[2])


def bias_gradient(r: Request, heads: int, each: bool) -> Tensor:
    """Zeros that the gradient of the bias is added to: summed up where the bias is broadcast and one thread does it.

    `each`: every head is to have its own.
    """
    assert r.bias is not None
    (_, own, rows, keys), exact = r.bias.shape, compute_dtype(r.query.dtype)
    keys = r.key.shape[2] if keys > 1 else 1
    rows = r.query.shape[2] if rows > 1 or keys == 1 else 1
    return r.query.new_zeros(r.query.shape[0], heads if each or own > 1 else 1, rows, keys, dtype=exact)


def sum_bias(r: Request, d_bias: Tensor, d_form_bias: Tensor | None, heads: Tensor | None) -> Tensor:
    """The gradient of the bias, in its shape: of all heads, and of the selecting ones as a form [B, P, ...]."""
    assert r.bias is not None
    shape = r.bias.shape

    def summed(x: Tensor) -> Tensor:
        over = [dim for dim in (0, 2, 3) if shape[dim] == 1 and x.shape[dim] > 1]
        x = x.sum(over, keepdim=True) if over else x
        return x if shape[1] > 1 else x.sum(1, keepdim=True)

    found = summed(d_bias)
    if d_form_bias is None or heads is None:
        return found
    part = summed(d_form_bias)
    return found.index_add(1, heads, part) if shape[1] > 1 else found + part


def _hidden(r: Request, folds: Folds, until: Tensor | None) -> Tensor | None:
    """[B, P, N, M] 0, and -inf for what a bias hides from all heads of a mask; None if it hides nothing."""
    if r.bias is None:
        return None
    hides = r.bias == -torch.inf
    if not bool(hides.any()):
        return None
    if (
        hides.shape[1] > 1 and until is not None and folds.each > 1
    ):  # what one order keeps, the bias may hide from its heads
        rows = torch.arange(r.offset, r.key.shape[2], device=hides.device)[:, None]
        gone = rows >= until.repeat_interleave(r.query.shape[1] // folds.number, 1).unsqueeze(-2)
        hides = hides | gone
    if hides.shape[1] > 1:
        hides = hides.unflatten(1, (folds.masks, -1)).all(2).repeat_interleave(folds.each, 1)
    found = torch.zeros_like(hides, dtype=compute_dtype(r.query.dtype)).masked_fill(hides, -torch.inf)
    return whole_bias(r, found, folds.number)
