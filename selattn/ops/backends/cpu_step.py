"""One step of decoding by the compiled library, csrc/cache/decode.h."""

from __future__ import annotations

import torch
from torch import Tensor

from selattn.ops.backends.cpu_library import (
    DTYPES,
    call_library,
    dense_rows,
    form_fields,
    form_of_type,
    integers,
    policy_number,
    rules_fields,
)
from selattn.ops.backends.cpu_order import refusal
from selattn.ops.order import StepRequest
from selattn.ops.rules import position_bias
from selattn.utils.native import struct


def step_refusal(request: StepRequest) -> str | None:
    """Why the library cannot make this step; None if it can."""
    if torch.compiler.is_compiling():
        return "it cannot be compiled into a graph: it writes to the slots"
    policy, slots = request.policy, request.slots
    # Every step passes here: a reason is put into words only if it holds.
    if request.budget is not None and policy.compiled() is None:
        return f"it does not know the policy {policy.name!r}"
    if policy.leaves_early:
        return f"it keeps no slot free, as the policy {policy.name!r} does"
    if policy.needs_weights and policy.compiled() is None:
        return f"it does not know the scores of the policy {policy.name!r}"
    if slots.f.shape[1] and slots.f.shape[2] > 1:
        return "it has no masks that select in the eviction orders of others"
    form = request.tokens.selection_query
    if form is not None and form_of_type(form, request.tokens.query) is not form:
        return f"it takes no form of {form.dtype} beside queries of {request.tokens.query.dtype}"
    return refusal(request.tokens, request.rules)


def step(request: StepRequest) -> Tensor:
    """The output [B, H, 1, Dv] of the query; the slots are written to."""
    slots, tokens, rules = request.slots, request.tokens, request.rules
    keys, values, position, f = slots.keys, slots.values, slots.position, slots.f
    form_keys, score = slots.selection_keys, slots.score if request.policy.needs_weights else None
    query, key, value = (dense_rows(x) for x in (tokens.query, tokens.key, tokens.value))
    real = None if tokens.real is None else tokens.real.contiguous()
    batch, heads, _, size = query.shape
    groups, places, value_size = values.shape[1:]
    out = query.new_empty(batch, heads, 1, value_size) if real is None else query.new_zeros(batch, heads, 1, value_size)
    bias = None if rules.bias is None else _bias(request)
    number, parameter = policy_number(request.policy)
    selection = rules.selection
    form: tuple[Tensor | None, Tensor | None] = (None, None)
    if tokens.selection_query is not None and tokens.selection_key is not None and form_keys is not None:
        form = (dense_rows(tokens.selection_query), dense_rows(tokens.selection_key))
    heads_that_select = integers(selection.heads) if selection is not None and form_keys is None else None
    packed = struct("Step").pack(
        policy=number,
        parameter=parameter,
        B=batch,
        H=heads,
        G=groups,
        C=places,
        P=position.shape[1],
        S=0 if selection is None else f.shape[1],
        D=size,
        Dv=value_size,
        budget=request.budget or 0,
        used=request.used,
        dtype=DTYPES[query.dtype],
        threads=torch.get_num_threads(),
        query=query,
        key=key,
        value=value,
        query_stride=query,
        key_stride=key,
        value_stride=value,
        rows=request.rows,
        keys=keys,
        values=values,
        position=position,
        f=None if selection is None else f,
        score=score,
        keys_row=keys.stride(0),
        values_row=values.stride(0),
        position_row=position.stride(0),
        f_row=f.stride(0),
        score_row=0 if score is None else score.stride(0),
        form_keys_row=0 if form_keys is None else form_keys.stride(0),
        length=request.length,
        real=real,
        **rules_fields(rules, query),
        bias=bias,
        bias_stride=bias,
        heads=heads_that_select,
        **form_fields(*form),
        form_keys=form_keys,
        output=out,
    )
    call_library("selattn_decode", packed, who="the cache", smaller="smaller budgets")
    return out


def _bias(request: StepRequest) -> Tensor | None:
    """[B, H, 1, C + 1] of the slots as they are, and behind them of the new token: its slot is not known yet."""
    query, position = request.tokens.query, request.slots.position
    position = position if request.rows is None else position[request.rows]
    orders = position.shape[1]
    shared, each = query.shape[1] // orders, []
    for p in range(orders):
        at = torch.cat([position[:, p, : request.used].long(), request.length[:, None]], -1)
        found = position_bias(request.rules, query, at)
        if found is None:
            return None
        each.append(found.expand(*query.shape[:2], 1, at.shape[-1])[:, p * shared : (p + 1) * shared])
    return dense_rows(each[0] if orders == 1 else torch.cat(each, 1))
