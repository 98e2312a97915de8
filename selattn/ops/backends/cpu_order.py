"""The eviction order of many queries by the compiled library, csrc/cache/evict.h."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from selattn.errors import SelattnError
from selattn.ops.backends import plain_order
from selattn.ops.backends.cpu import DTYPES, LARGEST_HEAD
from selattn.ops.backends.plain_order import Strip
from selattn.ops.order import Order, OrderRequest, Ranking
from selattn.ops.rules import Rules
from selattn.ops.selection import Selection
from selattn.ops.tokens import Tokens
from selattn.utils import native
from selattn.utils.structs import struct


def call_library(function: str, *args: Any) -> None:
    """Call a function of the compiled library; one line where it runs out of memory."""
    library = native.library()
    assert library is not None
    if getattr(library, function)(*args):
        raise SelattnError("the cache needs more memory than there is: use a smaller batch or smaller budgets")


def refusal(tokens: Tokens, rules: Rules) -> str | None:
    """Why the library cannot make the logits of these queries; None if it can."""
    query = tokens.query
    reasons = {
        f"it runs on the CPU, not on {query.device.type}": query.device.type != "cpu",
        f"it takes fp32, fp64 and bf16, not {query.dtype}": query.dtype not in DTYPES,
        f"its heads have at most {LARGEST_HEAD} features": max(query.shape[3], tokens.value.shape[3]) > LARGEST_HEAD,
        "it has no soft cap": rules.softcap is not None,
        "it has no sparse patterns": rules.pattern is not None,
        "it has no separate bilinear form": tokens.selection_query is not None,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def order_refusal(request: OrderRequest) -> str | None:
    """Why the library cannot compute this order; None if it can."""
    if request.policy.compiled() is None:
        return f"it does not know the policy {request.policy.name!r}"
    return None


def order(request: OrderRequest) -> tuple[Order, Tensor | None]:
    """The order after the queries, and the scores after each of them.

    Logits are made of what is kept only, so that time follows the budget. What the library has no logits for (a sparse
    pattern, a separate form, another device) is given to it strip by strip.
    """
    policy, tokens, rules = request.policy, request.tokens, request.rules
    if refusal(tokens, rules):
        if torch.compiler.is_exporting():
            raise SelattnError("budgets with a sparse pattern or a separate form cannot be exported: leave them out")
        return plain_order.order(request, order_of_strip)
    selection = rules.selection if policy.needs_weights or policy.needs_f else None
    heads = [] if selection is None else list(selection.heads)
    switches = rules.selection or Selection()
    shared = tokens.query.shape[1] // request.keys.shape[1]
    number, parameter = policy.compiled() or (0, 0.0)
    # In a compiled graph it is one node; else it is called at once, which is quicker.
    call = _node if torch.compiler.is_compiling() else _from_keys
    until, f, score, scores = call(
        tokens.query.detach(),
        request.keys.detach(),
        request.positions,
        request.before.until,
        request.before.f.detach(),
        request.before.score.detach(),
        rules.strength_of(tokens.query),
        number,
        parameter,
        request.budget,
        heads,
        [head // shared for head in heads],
        rules.scale_of(tokens.query),
        rules.window or 0,
        [switches.relu, switches.protect_first, switches.protect_self, switches.shift],
        request.history,
    )
    return Order(until, f, score), scores if request.history else None


def _from_keys(
    query: Tensor,
    keys: Tensor,
    positions: Tensor,
    until: Tensor,
    f: Tensor,
    score: Tensor,
    strength: Tensor | None,
    policy: int,
    parameter: float,
    budget: int,
    heads: list[int],
    selecting: list[int],
    scale: float,
    window: int,
    switches: list[bool],
    history: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The order and the scores after each row (empty without `history`), logits made from queries and keys."""
    query, keys = _dense_rows(query), _dense_rows(keys)
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
        "scale": scale,
        "strength": 1.0 if strength is None else float(strength),
        "window": window,
        **dict(zip(("relu", "protect_first", "protect_self", "shift"), switches, strict=True)),
        "heads": torch.tensor(heads, dtype=torch.int64),
        "logits": None,
        "selected": None,
    }
    kind = (policy, parameter)
    found, scores = _evict(fields, kind, budget, selecting, positions, Order(until, f, score), history)
    return *found, score.new_empty(0) if scores is None else scores


_node = torch.library.custom_op(
    "selattn::eviction_order",
    _from_keys,
    mutates_args=(),
    schema="""(Tensor query, Tensor keys, Tensor positions, Tensor until, Tensor f, Tensor score, Tensor? strength,
        int policy, float parameter, int budget, int[] heads, int[] selecting, float scale, int window, bool[] switches,
        bool history) -> (Tensor, Tensor, Tensor, Tensor)""",
)


@_node.register_fake
def _(*args: Any) -> tuple[Tensor, ...]:
    query, (until, f, score), history = args[0], args[3:6], args[-1]
    scores = score.new_empty(query.shape[2], *score.shape) if history else score.new_empty(0)
    return (*(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (until, f, score)), scores)


def order_of_strip(
    policy: Ranking, budget: int, strip: Strip, before: Order, history: bool
) -> tuple[Order, Tensor | None]:
    """The same for queries whose logits and S are given."""
    logits, selected = (None if x is None else x.detach().cpu().contiguous() for x in (strip.logits, strip.selected))
    made = ("query", "query_stride", "key", "key_stride", "heads")  # from queries and keys: not here
    fields = {
        "H": strip.heads[0],
        "G": strip.heads[1],
        "n": strip.rows,
        "dtype": DTYPES[before.score.dtype],
        "shift": strip.shift,
        "logits": logits,
        "selected": selected,
        **dict.fromkeys(made),
        **dict.fromkeys(("D", "scale", "strength", "window", "relu", "protect_first", "protect_self"), 0),
    }
    selecting = strip.selecting if strip.selected is not None else []
    kind = policy.compiled() or (0, 0.0)
    return _evict(fields, kind, budget, selecting, strip.positions, before, history)


def _evict(
    fields: dict[str, Any],
    policy: tuple[int, float],
    budget: int,
    selecting: list[int],
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
        "selecting": torch.tensor(selecting if orders > 1 else [0] * len(selecting), dtype=torch.int64),
        "positions": positions.cpu().contiguous(),
        "until": until,
        "f": f,
        "score": score,
        "history": scores,
    }
    call_library("selattn_evict", struct("Eviction").pack(**fields), ctypes.c_int64(torch.get_num_threads()))
    moved = Order(until.to(device), f.to(device), score.to(device))
    return moved, None if scores is None else scores.to(device)


def _dense_rows(x: Tensor) -> Tensor:
    """The tensor itself, if the features of a row lie side by side; else a copy."""
    return x if x.stride(-1) == 1 else x.contiguous()
