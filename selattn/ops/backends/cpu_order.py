"""The eviction order of many queries by the compiled library, csrc/cache/evict.h."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selattn.errors import SelattnError
from selattn.ops.backends import plain_order
from selattn.ops.backends.cpu_library import (
    DTYPES,
    call_library,
    cannot_hold,
    dense_rows,
    form_fields,
    form_of_type,
    policy_number,
    rules_fields,
)
from selattn.ops.backends.plain_order import Strip
from selattn.ops.operator import Arguments, in_transform, node
from selattn.ops.order import Order, OrderRequest, Ranking, orders_of_masks
from selattn.ops.request import Tokens
from selattn.ops.rules import Rules, position_bias
from selattn.utils.native import struct


def refusal(tokens: Tokens, rules: Rules) -> str | None:
    """Why the library cannot make the logits of these queries; None if it can."""
    form = () if tokens.selection_query is None else (tokens.selection_query,)
    return cannot_hold(tokens.query, tokens.value, *form) or (
        None if rules.pattern is None else "it has no sparse patterns"
    )


def order_refusal(request: OrderRequest) -> str | None:
    """Why the library cannot compute this order; None if it can."""
    if request.policy.compiled() is None:
        return f"it does not know the policy {request.policy.name!r}"
    return None


def order(request: OrderRequest) -> tuple[Order, Tensor | None]:
    """The order after the queries, and the scores after each of them.

    Logits are made of what is kept only, so that time follows the budget. What the library has no logits for (a sparse
    pattern, another device) is given to it strip by strip. The tensors of a transform of `torch.func`
    have no memory that it could read: there the order is found in plain PyTorch.
    """
    policy, tokens, rules = request.policy, request.tokens, request.rules
    if in_transform():
        return plain_order.order(request)
    if refusal(tokens, rules):
        if torch.compiler.is_exporting():
            raise SelattnError("budgets with a sparse pattern cannot be exported: leave them out")
        return plain_order.order(request, order_of_strip)
    number, parameter = policy_number(policy)
    selects = policy.needs_weights or policy.needs_f
    bias = position_bias(rules, tokens.query, request.positions) if selects else None
    call = Call(
        tokens.query.detach(),
        request.keys.detach(),
        request.positions,
        Order(request.before.until, request.before.f.detach(), request.before.score.detach()),
        rules._replace(bias=None),
        None if bias is None else bias.detach(),
        number,
        parameter,
        request.budget,
        selects,
        request.history,
        *(
            None if x is None or not selects else form_of_type(x.detach(), tokens.query)
            for x in (tokens.selection_query, request.selection_keys)
        ),
    )
    # In a compiled graph it is one node; else it is called at once, which is quicker.
    until, f, score, scores = NODE(*ARGUMENTS.flatten(call)) if torch.compiler.is_compiling() else _from_keys(call)
    return Order(until, f, score), scores if request.history else None


class Call(NamedTuple):
    """An order whose logits are made from queries and keys."""

    query: Tensor
    keys: Tensor
    positions: Tensor
    before: Order
    rules: Rules
    bias: Tensor | None  # [B or 1, H or 1, n, M]
    policy: int
    parameter: float
    budget: int
    selects: bool  # else F is not needed
    history: bool
    form_query: Tensor | None = None  # [B, S, n, Ds] of a separate form
    form_keys: Tensor | None = None  # [B, S, M, Ds]


def _from_keys(call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The order and the scores after each row (empty without `history`)."""
    query, keys, selection = dense_rows(call.query), dense_rows(call.keys), call.rules.selection
    bias = None if call.bias is None else dense_rows(call.bias.expand(*query.shape[:3], keys.shape[2]))
    form_query, form_keys = (None if x is None else dense_rows(x) for x in (call.form_query, call.form_keys))
    masks = call.rules.masks(form_query) if call.selects else 0
    heads = list(selection.heads) if selection is not None and masks and form_query is None else None
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
        "heads": None if heads is None else torch.tensor(heads, dtype=torch.int64),
        **form_fields(form_query, form_keys),
        "logits": None,
        "selected": None,
    }
    orders = call.before.until.shape[1]
    selecting = orders_of_masks(call.rules, form_query is not None, masks, orders, query.shape[1]) if masks else []
    kind = (call.policy, call.parameter)
    found, scores = _evict(fields, kind, call.budget, selecting, call.positions, call.before, call.history)
    return *found, call.before.score.new_empty(0) if scores is None else scores


def _shapes(call: Call) -> tuple[Tensor, ...]:
    score = call.before.score
    scores = score.new_empty(call.query.shape[2], *score.shape) if call.history else score.new_empty(0)
    return (*(torch.empty_like(x, memory_format=torch.contiguous_format) for x in call.before), scores)


ARGUMENTS = Arguments(Call)
NODE = node("eviction_order", ARGUMENTS, _from_keys, _shapes, results=4)


def order_of_strip(
    policy: Ranking, budget: int, strip: Strip, before: Order, history: bool
) -> tuple[Order, Tensor | None]:
    """The same for queries whose logits and S are given."""
    logits, selected = (None if x is None else x.detach().cpu().contiguous() for x in (strip.logits, strip.selected))
    fields = {
        "H": strip.heads[0],
        "G": strip.heads[1],
        "n": strip.rows,
        "D": 0,
        "dtype": DTYPES[before.score.dtype],
        "logits": logits,
        "selected": selected,
        # From these nothing is made.
        **dict.fromkeys(("query", "query_stride", "key", "key_stride", "bias", "bias_stride", "heads")),
        **form_fields(None, None),
        **rules_fields(Rules(), before.score),
        "shift": strip.shift,
    }
    selecting = strip.selecting if strip.selected is not None else []
    kind = policy_number(policy)
    return _evict(fields, kind, budget, selecting, strip.positions, before, history)


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
        "policy": policy[0],
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
