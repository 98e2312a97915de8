"""The compiled backend: `csrc/attention` as an operator; the eviction order and a decode step are in cpu_cache.py.

Forward and backward in tiles, several threads, linear memory but for F at the first row of each block of queries.
Columns that are dead for good are left out (see `csrc/attention/bounds.h`), so that time follows what is alive.

A call becomes the problems of `csrc/attention/problem.h`, one for each mask and eviction order: heads that follow
different masks, or see what different orders keep, have nothing to do with each other. So they become folds, rows of a
larger batch, each with its share of the heads, which the library computes side by side. With one mask and one order
there is one fold, and nothing of this costs anything. S of a fold comes from one of its own heads where that is the
selecting one. Else it comes from a selecting form: a separate one, or the query and key of the selecting head as a form
of their own; that costs one more product.

Shapes: as in `selattn.ops.request`, and P folds.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selattn.ops.autograd import Came, Operator, Saved
from selattn.ops.backends import cpu_cache
from selattn.ops.backends.base import Backend
from selattn.ops.backends.cpu_library import (
    BLOCK,
    DTYPES,
    call_library,
    cannot_hold,
    dense_rows,
    form_fields,
    form_of_type,
    integers,
    rules_fields,
)
from selattn.ops.eviction import Order, OrderRequest, StepRequest
from selattn.ops.request import Attention, Request
from selattn.ops.rules import compute_dtype
from selattn.ops.sequences import living_share
from selattn.utils import native
from selattn.utils.native import struct


class Cpu(Backend):
    """The compiled library: attention, the eviction order and the decode step in C++."""

    name = "cpu"
    plain = False

    def unavailable(self) -> str | None:
        return native.unavailable()

    def refusal(self, request: Request) -> str | None:
        r, wanted = request, request.wanted
        if reason := cannot_hold(r.query, r.value, r.selection_query):
            return reason
        if r.key.shape[2] > 2**24 and r.query.dtype != torch.float64:
            return "it counts tokens in floating point, in fp32 up to 2^24"
        if wanted.weights:
            return "it never holds the attention weights"
        if wanted.f:
            return "it never holds F"
        if r.rules.dropout_p > 0:
            return "it has no dropout"
        if r.mask is not None:
            return "it takes masks as sequences and windows only"
        if r.rules.pattern is not None:
            return "it has no sparse patterns"
        if (wanted.final_f or r.initial_f is not None) and r.needs_grad:
            return "it has no gradient through an initial or final F"
        return None

    def attend(self, request: Request) -> Attention:
        return OPERATOR.attend(request)

    def order_refusal(self, request: OrderRequest) -> str | None:
        return cpu_cache.order_refusal(request)

    def order(self, request: OrderRequest) -> tuple[Order, Tensor | None]:
        return cpu_cache.order(request)

    def step_refusal(self, request: StepRequest) -> str | None:
        return cpu_cache.step_refusal(request)

    def step(self, request: StepRequest) -> Tensor:
        return cpu_cache.step(request)


class Form(NamedTuple):
    """The selecting heads or form of each fold, where none of its own heads selects."""

    query: Tensor  # [B, P, N, Ds]
    key: Tensor  # [B, P, M, Ds]
    scale: float
    softcap: float
    until: Tensor | None  # [B, P, M] the row from which it does not see a key; None: as for the heads of the fold
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
    selection, heads, masks = r.rules.selection, r.query.shape[1], r.masks or 1
    count = math.lcm(masks, 1 if r.until is None else r.until.shape[1])
    share, own = heads // count, (0,) * count
    if selection is not None:
        # A head of its own selects in every fold, or in none.
        own = (-1,) * count
        if r.selection_query is None and count == masks:
            first = tuple([head - fold * share for fold, head in enumerate(selection.heads)])
            own = first if min(first) >= 0 and max(first) < share else own
    return Folds(count, masks, math.lcm(r.key.shape[1], count) // r.key.shape[1], own)


def until_of(r: Request, folds: Folds) -> Tensor | None:
    """[B, P, M] the row from which a key is evicted for the heads of a fold."""
    if r.until is None:
        return None
    batch, orders, keys = r.query.shape[0], r.until.shape[1], r.key.shape[2]
    each = r.until.to(torch.int64).expand(batch, orders, keys)
    return each.repeat_interleave(folds.number // orders, 1).contiguous()


def form_of(r: Request, folds: Folds) -> Form | None:
    """The heads or form that select in place of the folds' own heads."""
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


def selecting_fields(form: Form | None) -> dict[str, Any]:
    """The fields of the form."""
    query, key = (None, None) if form is None else (dense_rows(form.query), dense_rows(form.key))
    return {
        **form_fields(query, key),
        "form_scale": 0.0 if form is None else form.scale,
        "form_softcap": 0.0 if form is None else form.softcap,
        "form_until": None if form is None else form.until,
        **bias_fields("form_bias", None if form is None else form.bias),
    }


def bias_fields(name: str, bias: Tensor | None) -> dict[str, Any]:
    """The fields of a bias [B, heads, N, M], or of a gradient; broadcast dimensions have a stride of 0."""
    key = 0 if bias is None else bias.stride(-1)
    return {name: bias, f"{name}_stride": bias, f"{name}_key": key}


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

    total = summed(d_bias)
    if d_form_bias is None or heads is None:
        return total
    part = summed(d_form_bias)
    return total.index_add(1, heads, part) if shape[1] > 1 else total + part


def _hidden(r: Request, folds: Folds, until: Tensor | None) -> Tensor | None:
    """[B, P, N, M] 0, and -inf for what a bias hides from all heads of a mask; None if it hides nothing."""
    if r.bias is None:
        return None
    hides = r.bias == -torch.inf
    if not bool(hides.any()):
        return None
    if hides.shape[1] > 1 and until is not None and folds.each > 1:
        # What one order keeps, the bias may hide from its heads.
        rows = torch.arange(r.offset, r.key.shape[2], device=hides.device)[:, None]
        gone = rows >= until.repeat_interleave(r.query.shape[1] // folds.number, 1).unsqueeze(-2)
        hides = hides | gone
    if hides.shape[1] > 1:
        hides = hides.unflatten(1, (folds.masks, -1)).all(2).repeat_interleave(folds.each, 1)
    hidden = torch.zeros_like(hides, dtype=compute_dtype(r.query.dtype)).masked_fill(hides, -torch.inf)
    return whole_bias(r, hidden, folds.number)


class CpuResults(NamedTuple):
    """The results of the forward pass; empty for what was not asked for."""

    output: Tensor  # [B, H, N, Dv]
    lse: Tensor  # [B, H, N]
    memory: Tensor  # [B, S, N]
    final_f: Tensor  # [B, S, M]
    block_f: Tensor  # [B, P * blocks * M] F at the first row of each block, for the backward pass
    dead: Tensor  # [B, P, M] the block from which a column is dead
    living: Tensor  # [B] the share of the visible pairs that was computed


def _shapes(r: Request, folds: Folds | None = None) -> CpuResults:
    """Empty tensors for them."""
    folds = folds or folds_of(r)
    empty, exact = r.query.new_empty, compute_dtype(r.query.dtype)
    batch, heads, rows = r.query.shape[:3]
    keys = r.key.shape[2]
    # In one row: as a size of its own, the number of blocks would be a constant of a compiled graph where it is 1.
    of_blocks = (batch, -(-rows // BLOCK) * keys * folds.number) if r.gradient and r.rules.selection is not None else 0
    return CpuResults(
        output=empty((batch, heads, rows, r.value.shape[3])),
        lse=empty((batch, heads, rows), dtype=exact),
        memory=empty((batch, folds.masks, rows) if r.wanted.memory else 0, dtype=exact),
        final_f=empty((batch, folds.masks, keys) if r.wanted.final_f else 0, dtype=exact),
        block_f=empty(of_blocks, dtype=exact),
        dead=empty((batch, folds.number, keys), dtype=torch.int32),
        living=empty(batch if r.wanted.living else 0, dtype=torch.float64),
    )


def _forward(r: Request) -> CpuResults:
    folds = folds_of(r)
    results = _shapes(r, folds)
    pairs = torch.zeros(r.query.shape[0], folds.number, dtype=torch.int64) if r.wanted.living else None
    # The library gives M and F of every fold; those of one mask are the same.
    of_folds = {}
    if folds.each > 1:
        asked = ((name, x) for name, x in (("memory", results.memory), ("final_f", results.final_f)) if x.numel())
        of_folds = {name: x.new_empty(x.shape[0], folds.number, x.shape[2]) for name, x in asked}
    fields = {**_NO_GRADIENTS, **results._asdict(), **of_folds, "living": pairs}
    _run("selattn_forward", r, folds, form_of(r, folds), fields)
    if of_folds:
        results = results._replace(**{name: x[:, :: folds.each].clone() for name, x in of_folds.items()})
    if pairs is None:
        return results
    rows, keys = r.query.shape[2], r.key.shape[2]
    share = living_share(r.start, until_of(r, folds), r.rules.window, rows, keys, pairs.sum(1))
    return results._replace(living=share)


def _backward(r: Request, saved: Saved, came: Came, needed: frozenset[str]) -> dict[str, Tensor | None]:
    output, lse, folds = saved["output"], saved["lse"], folds_of(r)
    form = form_of(r, folds)
    d_output = torch.zeros_like(output) if came["output"] is None else dense_rows(came["output"].to(output.dtype))
    batch, heads, rows, size = r.query.shape
    groups, keys, value_size = r.value.shape[1] * folds.repeat, *r.value.shape[2:]
    dq, dk = lse.new_zeros(batch, heads, rows, size), lse.new_zeros(batch, groups, keys, size)
    dv = lse.new_zeros(batch, groups, keys, value_size)
    d_form = None if form is None else [torch.zeros_like(x, dtype=lse.dtype).contiguous() for x in form[:2]]
    differentiates_bias = "bias" in needed and r.bias is not None
    d_bias = bias_gradient(r, heads, folds.number > 1) if differentiates_bias else None
    own_bias = differentiates_bias and form is not None and form.heads is not None
    d_form_bias = bias_gradient(r, folds.number, True) if own_bias else None
    # Others than query and key need what comes without their scale.
    scale = r.scale if form is None and d_bias is None else 1.0
    fields = {
        **saved,
        "d_output": d_output,
        "d_output_stride": d_output,
        "d_memory": _of_folds(came["memory"], folds, lse),
        "d_scale": scale,
        "dq": dq,
        "dk": dk,
        "dv": dv,
        "d_form_query": None if d_form is None else d_form[0],
        "d_form_key": None if d_form is None else d_form[1],
        **_gradient_fields(
            None if d_bias is None else (d_bias, whole_bias(r, d_bias, heads)),
            None if d_form_bias is None else (d_form_bias, whole_bias(r, d_form_bias, folds.number)),
        ),
        **dict.fromkeys(("memory", "final_f", "living")),
    }
    _run("selattn_backward", r, folds, form, fields)
    if scale != r.scale:
        dq, dk = dq * r.scale, dk * r.scale
    if folds.repeat > 1:
        dk, dv = (x.unflatten(1, (-1, folds.repeat)).sum(2) for x in (dk, dv))
    gradients: dict[str, Tensor | None] = {"query": dq, "key": dk, "value": dv}
    if form is not None and d_form is not None:
        d_form = [x * form.scale for x in d_form]
        if form.heads is None:
            each = [x.unflatten(1, (folds.masks, -1)).sum(2) if folds.each > 1 else x for x in d_form]
            gradients |= dict(zip(("selection_query", "selection_key"), each, strict=True))
        else:
            dq.index_add_(1, form.heads, d_form[0])
            dk.index_add_(1, form.heads // (heads // r.key.shape[1]), d_form[1])
    if d_bias is not None:
        gradients["bias"] = sum_bias(r, d_bias, d_form_bias, None if form is None else form.heads)
    return gradients


def _of_folds(x: Tensor | None, folds: Folds, like: Tensor) -> Tensor | None:
    """The gradient of M [B, S, N] as [B, P, N]: the first fold of each mask has it."""
    if x is None:
        return None
    if folds.each == 1:
        return x.to(like.dtype).contiguous()
    each = like.new_zeros(x.shape[0], folds.number, x.shape[2])
    each[:, :: folds.each] = x
    return each


def _gradient_fields(d_bias: tuple[Tensor, Tensor] | None, d_form_bias: tuple[Tensor, Tensor] | None) -> dict[str, Any]:
    """The fields of the gradients of biases, each a buffer and its view [B, heads, N, M]."""
    fields: dict[str, Any] = {}
    for name, pair in (("d_bias", d_bias), ("d_form_bias", d_form_bias)):
        fields |= bias_fields(name, None if pair is None else pair[1])
        fields[f"{name}_count"] = 0 if pair is None else pair[0].numel()
    return fields


_NO_GRADIENTS = {
    **dict.fromkeys(("d_output", "d_output_stride", "d_memory", "dq", "dk", "dv", "d_form_query", "d_form_key")),
    "d_scale": 0.0,
    **_gradient_fields(None, None),
}


def _run(function: str, r: Request, folds: Folds, form: Form | None, results: dict[str, Any]) -> None:
    """Call the library, which writes to the results."""
    if r.query.shape[0] == 0:
        return
    query, key, value = dense_rows(r.query), dense_rows(r.key), dense_rows(r.value)
    (batch, heads, rows, size), (groups, keys, value_size) = query.shape, value.shape[1:]
    bias, exact = None if r.bias is None else whole_bias(r, r.bias, heads), compute_dtype(r.query.dtype)
    fields = {
        "B": batch * folds.number,
        "H": heads // folds.number,
        "G": groups * folds.repeat // folds.number,
        "N": rows,
        "M": keys,
        "D": size,
        "Dv": value_size,
        "dtype": DTYPES[query.dtype],
        "threads": torch.get_num_threads(),
        "folds": folds.number,
        "repeat": folds.repeat,
        "query": query,
        "key": key,
        "value": value,
        "query_stride": query,
        "key_stride": key,
        "value_stride": value,
        **rules_fields(r.rules, query),
        "selects": r.rules.selection is not None,
        "selecting": integers(folds.heads),
        **selecting_fields(form),
        **bias_fields("bias", bias),
        "bias_top": None
        if bias is None or r.bias is None
        else r.bias.amax((2, 3)).to(bias.dtype).expand(batch, heads).contiguous(),
        "tau": r.rules.tau,
        "tolerance": r.rules.tolerance,
        "start": None if r.start is None else r.start[:, None].expand(batch, folds.number, keys).contiguous(),
        "until": until_of(r, folds),
        "initial_f": None
        if r.initial_f is None
        else r.initial_f.to(exact).repeat_interleave(folds.each, 1).contiguous(),
        **results,
    }
    call_library(function, struct("Problem").pack(**fields), who="attention", smaller="a shorter context")


OPERATOR = Operator(
    "cpu",
    results=CpuResults,
    forward=_forward,
    shapes=_shapes,
    backward=_backward,
    saved=("output", "lse", "block_f", "dead"),
    gradients=("query", "key", "value", "bias", "selection_query", "selection_key"),
)
