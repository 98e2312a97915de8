"""The eviction order and a step of decoding by the compiled library: csrc/cache/evict.h and csrc/cache/decode.h."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from selattn.errors import SelattnError
from selattn.ops.autograd import Arguments, node
from selattn.ops.backends import plain_cache
from selattn.ops.backends.cpu_library import (
    DTYPES,
    POLICIES,
    call_library,
    cannot_hold,
    dense_rows,
    form_fields,
    form_of_type,
    integers,
    rules_fields,
)
from selattn.ops.backends.plain_cache import Strip
from selattn.ops.eviction import (
    Order,
    OrderCall,
    OrderRequest,
    Ranking,
    StepRequest,
    order_call,
    orders_of_masks,
    policy_number,
)
from selattn.ops.request import Tokens
from selattn.ops.rules import Rules, step_bias
from selattn.utils.native import struct


def _refusal(tokens: Tokens, rules: Rules) -> str | None:
    """Why the library cannot compute the logits of these queries; None if it can."""
    return cannot_hold(tokens.query, tokens.value, tokens.selection_query) or (
        None if rules.pattern is None else "it has no sparse patterns"
    )


def order_refusal(request: OrderRequest) -> str | None:
    """Why the library cannot compute this order; None if it can."""
    if request.policy.compiled() is None:
        return f"it does not know the policy {request.policy.name!r}"
    return None


def order(request: OrderRequest) -> tuple[Order, Tensor | None]:
    """The order after the queries, and the scores after each of them.

    The library computes logits of what is kept only, so that time follows the budget. Where it cannot (a sparse
    pattern, another device) they are given to it strip by strip.
    """
    if _refusal(request.tokens, request.rules):
        if torch.compiler.is_exporting():
            raise SelattnError("budgets with a sparse pattern cannot be exported: leave them out")
        return plain_cache.order(request, order_of_strip)
    call = order_call(request)
    # In a compiled graph it is one node; else it is called at once, which is quicker.
    until, f, score, scores = NODE(*ARGUMENTS.flatten(call)) if torch.compiler.is_compiling() else _from_keys(call)
    return Order(until, f, score), scores if request.history else None


def _from_keys(call: OrderCall) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The order and the scores after each row (empty without `history`)."""
    query, keys, selection = dense_rows(call.query), dense_rows(call.keys), call.rules.selection
    bias = None if call.bias is None else dense_rows(call.bias.expand(*query.shape[:3], keys.shape[2]))
    form = [None if x is None else dense_rows(form_of_type(x, query)) for x in (call.form_query, call.form_keys)]
    masks = call.rules.masks(call.form_query) if call.selects else 0
    orders, separate = call.before.until.shape[1], call.form_query is not None
    fields = {
        "H": query.shape[1],
        "G": keys.shape[1],
        "n": query.shape[2],
        "D": query.shape[3],
        "dtype": DTYPES[query.dtype],
        "query": query,
        "query_stride": query,
        "key": keys,
        "key_stride": keys,
        **rules_fields(call.rules, query),
        "bias": bias,
        "bias_stride": bias,
        "heads": integers(selection.heads) if selection is not None and masks and not separate else None,
        **form_fields(*form),
        "logits": None,
        "selected": None,
    }
    selecting = orders_of_masks(call.rules, separate, masks, orders, query.shape[1]) if masks else []
    policy = (call.policy, call.parameter)
    after, scores = _evict(fields, policy, call.budget, selecting, call.positions, call.before, call.history)
    return *after, call.before.score.new_empty(0) if scores is None else scores


def _shapes(call: OrderCall) -> tuple[Tensor, ...]:
    score = call.before.score
    scores = score.new_empty(call.query.shape[2], *score.shape) if call.history else score.new_empty(0)
    return (*(torch.empty_like(x, memory_format=torch.contiguous_format) for x in call.before), scores)


ARGUMENTS = Arguments(OrderCall)
NODE = node("eviction_order", ARGUMENTS, _from_keys, _shapes, results=4)


def order_of_strip(
    policy: Ranking, budget: int, strip: Strip, before: Order, history: bool
) -> tuple[Order, Tensor | None]:
    """The same for queries whose logits and S are given: what `plain_cache.row_by_row` does."""
    logits, selected = (None if x is None else x.detach().cpu().contiguous() for x in (strip.logits, strip.selected))
    fields = {
        "H": strip.heads[0],
        "G": strip.heads[1],
        "n": strip.rows,
        "D": 0,
        "dtype": DTYPES[before.score.dtype],
        "logits": logits,
        "selected": selected,
        # What logits would be made of.
        **dict.fromkeys(("query", "query_stride", "key", "key_stride", "bias", "bias_stride", "heads")),
        **form_fields(None, None),
        **rules_fields(Rules(), before.score),
        "shift": strip.shift,
    }
    selecting = strip.selecting if strip.selected is not None else []
    return _evict(fields, policy_number(policy), budget, selecting, strip.positions, before, history)


def _evict(
    fields: dict[str, Any],
    policy: tuple[int, float],
    budget: int,
    selecting: list[slice],
    positions: Tensor,
    before: Order,
    history: bool,
) -> tuple[Order, Tensor | None]:
    device = before.score.device
    until = before.until.cpu().clone(memory_format=torch.contiguous_format)  # written to, like F and score
    f, score = (x.detach().cpu().contiguous().clone() for x in (before.f, before.score))
    batch, orders, entries = until.shape
    scores = score.new_empty(fields["n"], *score.shape) if history else None
    fields |= {
        "policy": POLICIES[policy[0]],
        "parameter": policy[1],
        "B": batch,
        "P": orders,
        "S": len(selecting),
        "M": entries,
        "budget": budget,
        "selecting": torch.tensor([(which.start, which.stop) for which in selecting], dtype=torch.int64),
        "positions": positions.cpu().contiguous(),
        "until": until,
        "f": f,
        "score": score,
        "history": scores,
    }
    packed, threads = struct("Eviction").pack(**fields), ctypes.c_int64(torch.get_num_threads())
    call_library("selattn_evict", packed, threads, who="the cache", smaller="smaller budgets")
    moved = Order(until.to(device), f.to(device), score.to(device))
    return moved, None if scores is None else scores.to(device)


def step_refusal(request: StepRequest) -> str | None:
    """Why the library cannot make this step; None if it can."""
    if torch.compiler.is_compiling():
        return "it cannot be compiled into a graph: it writes to the slots"
    policy, slots, query = request.policy, request.slots, request.tokens.query
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
    if form is not None and form_of_type(form, query) is not form:
        return f"it takes no form of {form.dtype} beside queries of {query.dtype}"
    return _refusal(request.tokens, request.rules)


def step(request: StepRequest) -> Tensor:
    """The output [B, H, 1, Dv] of the query; the slots are written to."""
    slots, tokens, rules, selection = request.slots, request.tokens, request.rules, request.rules.selection
    keys, values, position, f = slots.keys, slots.values, slots.position, slots.f
    form_keys, score = slots.selection_keys, slots.score if request.policy.needs_weights else None
    query, key, value = (dense_rows(x) for x in (tokens.query, tokens.key, tokens.value))
    real = None if tokens.real is None else tokens.real.contiguous()
    (batch, heads, _, size), (groups, places, value_size) = query.shape, values.shape[1:]
    out = query.new_empty(batch, heads, 1, value_size) if real is None else query.new_zeros(batch, heads, 1, value_size)
    bias = None
    if rules.bias is not None:
        kept = (position if request.rows is None else position[request.rows])[..., : request.used]
        bias = step_bias(rules, query, kept, request.length)
        assert bias is not None
        bias = dense_rows(bias.expand(batch, heads, 1, request.used + 1))
    form: tuple[Tensor | None, Tensor | None] = (None, None)
    if tokens.selection_query is not None and tokens.selection_key is not None and form_keys is not None:
        form = (dense_rows(tokens.selection_query), dense_rows(tokens.selection_key))
    policy, parameter = policy_number(request.policy)
    packed = struct("Step").pack(
        policy=POLICIES[policy],
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
        heads=integers(selection.heads) if selection is not None and form_keys is None else None,
        **form_fields(*form),
        form_keys=form_keys,
        output=out,
    )
    call_library("selattn_decode", packed, who="the cache", smaller="smaller budgets")
    return out
