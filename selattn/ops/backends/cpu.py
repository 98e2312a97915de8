"""The compiled backend: `csrc/attention`, made an operator, and beside it the eviction order and a step of decoding.

Forward and backward in tiles, several threads, linear memory but for F at the first row of each block of queries.
Columns that are dead for good are left out (see `csrc/attention/bounds.h`), so that time follows what is alive.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from selattn.ops import transforms
from selattn.ops.backends import cpu_order, cpu_step
from selattn.ops.backends.base import Backend
from selattn.ops.backends.cpu_folds import (
    Folds,
    Form,
    bias_fields,
    bias_gradient,
    folds_of,
    form_fields,
    form_of,
    sum_bias,
    until_of,
    whole_bias,
)
from selattn.ops.backends.cpu_library import (
    BLOCK,
    DTYPES,
    call_library,
    cannot_hold,
    dense_rows,
    integers,
    rules_fields,
)
from selattn.ops.operator import Came, Kernel, Operator, Saved, attend
from selattn.ops.order import Order, OrderRequest, StepRequest
from selattn.ops.precision import compute_dtype
from selattn.ops.request import Attention, Request
from selattn.ops.sequences import visible_pairs
from selattn.utils import native
from selattn.utils.structs import struct


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
        if (wanted.final_f or r.initial_f is not None) and transforms.differentiated(r):
            return "it has no gradient through an initial or final F"
        return None

    def attend(self, request: Request) -> Attention:
        return attend(OPERATOR, request)

    def order_refusal(self, request: OrderRequest) -> str | None:
        return cpu_order.order_refusal(request)

    def order(self, request: OrderRequest) -> tuple[Order, Tensor | None]:
        return cpu_order.order(request)

    def step_refusal(self, request: StepRequest) -> str | None:
        return cpu_step.step_refusal(request)

    def step(self, request: StepRequest) -> Tensor:
        return cpu_step.step(request)


class Results(NamedTuple):
    """What the forward pass gives; empty for what was not asked for. P folds: see `selattn.ops.backends.cpu_folds`."""

    output: Tensor  # [B, H, N, Dv]
    lse: Tensor  # [B, H, N]
    memory: Tensor  # [B, S, N]
    final_f: Tensor  # [B, S, M]
    block_f: Tensor  # [B, P * blocks * M] F at the first row of each block, for the backward pass
    dead: Tensor  # [B, P, M] the block from which a column is dead
    living: Tensor  # [B] the share of the visible pairs that was computed


def _shapes(r: Request) -> Results:
    return _empty_results(r, folds_of(r))


def _empty_results(r: Request, folds: Folds) -> Results:
    empty, exact = r.query.new_empty, compute_dtype(r.query.dtype)
    batch, heads, rows = r.query.shape[:3]
    keys = r.key.shape[2]
    # In one row: as a size of its own, the number of blocks would be a constant of a compiled graph where it is 1.
    of_blocks = (batch, -(-rows // BLOCK) * keys * folds.number) if r.gradient and r.rules.selection is not None else 0
    return Results(
        output=empty((batch, heads, rows, r.value.shape[3])),
        lse=empty((batch, heads, rows), dtype=exact),
        memory=empty((batch, folds.masks, rows) if r.wanted.memory else 0, dtype=exact),
        final_f=empty((batch, folds.masks, keys) if r.wanted.final_f else 0, dtype=exact),
        block_f=empty(of_blocks, dtype=exact),
        dead=empty((batch, folds.number, keys), dtype=torch.int32),
        living=empty(batch if r.wanted.living else 0, dtype=torch.float64),
    )


def _forward(r: Request) -> Results:
    folds = folds_of(r)
    found = _empty_results(r, folds)
    pairs = torch.zeros(r.query.shape[0], folds.number, dtype=torch.int64) if r.wanted.living else None
    # The library gives M and F of every fold; those of one mask are the same.
    of_folds = {}
    if folds.each > 1:
        asked = ((name, x) for name, x in (("memory", found.memory), ("final_f", found.final_f)) if x.numel())
        of_folds = {name: x.new_empty(x.shape[0], folds.number, x.shape[2]) for name, x in asked}
    fields = {**_NO_GRADIENTS, **found._asdict(), **of_folds, "living": pairs}
    _run("selattn_forward", r, folds, form_of(r, folds), fields)
    if of_folds:
        found = found._replace(**{name: x[:, :: folds.each].clone() for name, x in of_folds.items()})
    return found if pairs is None else found._replace(living=_share(pairs.sum(1), r, folds))


def _share(living: Tensor, r: Request, folds: Folds) -> Tensor:
    """Of the visible pairs, those that were computed; 1 where there is nothing to see."""
    until, size = until_of(r, folds), (r.query.shape[2], r.key.shape[2])
    each = [None] * folds.number if until is None else list(until.unbind(1))
    pairs = sum(visible_pairs(r.start, x, r.rules.window, *size).to(torch.int64) for x in each)
    assert isinstance(pairs, Tensor)
    return torch.where(pairs > 0, living.double() / pairs.clamp(min=1), 1.0)


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
    found: dict[str, Tensor | None] = {"query": dq, "key": dk, "value": dv}
    if form is not None and d_form is not None:
        d_form = [x * form.scale for x in d_form]
        if form.heads is None:
            each = [x.unflatten(1, (folds.masks, -1)).sum(2) if folds.each > 1 else x for x in d_form]
            found |= dict(zip(("selection_query", "selection_key"), each, strict=True))
        else:
            dq.index_add_(1, form.heads, d_form[0])
            dk.index_add_(1, form.heads // (heads // r.key.shape[1]), d_form[1])
    if d_bias is not None:
        found["bias"] = sum_bias(r, d_bias, d_form_bias, None if form is None else form.heads)
    return found


def _of_folds(x: Tensor | None, folds: Folds, like: Tensor) -> Tensor | None:
    """The gradient of M [B, S, N] as [B, P, N]: the first fold of each mask has it."""
    if x is None:
        return None
    if folds.each == 1:
        return x.to(like.dtype).contiguous()
    found = like.new_zeros(x.shape[0], folds.number, x.shape[2])
    found[:, :: folds.each] = x
    return found


def _gradient_fields(d_bias: tuple[Tensor, Tensor] | None, d_form_bias: tuple[Tensor, Tensor] | None) -> dict[str, Any]:
    """The fields of the gradients of biases, each a buffer and its view [B, heads, N, M]."""
    fields: dict[str, Any] = {}
    for name, found in (("d_bias", d_bias), ("d_form_bias", d_form_bias)):
        fields |= bias_fields(name, None if found is None else found[1])
        fields[f"{name}_count"] = 0 if found is None else found[0].numel()
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
    query, key, value = (dense_rows(x) for x in (r.query, r.key, r.value))
    (batch, heads, rows, size), (groups, keys, value_size) = query.shape, value.shape[1:]
    bias = None if r.bias is None else whole_bias(r, r.bias, heads)
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
        **form_fields(form),
        **bias_fields("bias", bias),
        "bias_top": None
        if bias is None or r.bias is None
        else r.bias.amax((2, 3)).to(bias.dtype).expand(batch, heads).contiguous(),
        "tau": r.rules.tau,
        "tolerance": r.rules.tolerance,
        "start": None if r.start is None else r.start[:, None].expand(batch, folds.number, keys).contiguous(),
        "until": until_of(r, folds),
        "initial_f": _initial_f(r, folds),
        **results,
    }
    call_library(function, struct("Problem").pack(**fields), who="attention", smaller="a shorter context")


def _initial_f(r: Request, folds: Folds) -> Tensor | None:
    """[B, P, M] F with which the first query begins."""
    if r.initial_f is None:
        return None
    return r.initial_f.to(compute_dtype(r.query.dtype)).repeat_interleave(folds.each, 1).contiguous()


OPERATOR = Operator(
    Kernel(
        name="cpu",
        call=Request,
        results=Results,
        forward=_forward,
        shapes=_shapes,
        backward=_backward,
        saved=("output", "lse", "block_f", "dead"),
        gradients=("query", "key", "value", "bias", "selection_query", "selection_key"),
    )
)
