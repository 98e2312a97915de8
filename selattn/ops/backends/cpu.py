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
from selattn.ops.backends.cpu_library import BLOCK, DTYPES, call_library, cannot_hold, dense_rows, rules_fields
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
        r = request
        reasons = {
            "it counts tokens in floating point, in fp32 up to 2^24": r.key.shape[2] > 2**24
            and r.query.dtype != torch.float64,
            "it never holds the attention weights": r.wanted.weights,
            "it never holds F": r.wanted.f,
            "it has no dropout": r.rules.dropout_p > 0,
            "it has no additive bias": r.bias is not None,
            "it takes masks as sequences and windows only": r.mask is not None,
            "it has no sparse patterns": r.rules.pattern is not None,
            "it has one selection mask": r.masks > 1,
            "it has no separate bilinear form": r.selection_query is not None,
            "it has one order of eviction for all heads": r.until is not None and r.until.shape[1] > 1,
            "it has no gradient through an initial or final F": transforms.differentiated(r)
            and (r.wanted.final_f or r.initial_f is not None),
        }
        reason = cannot_hold(r.query, r.value)
        return reason or next((reason for reason, holds in reasons.items() if holds), None)

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
    """What the forward pass gives; empty for what was not asked for."""

    output: Tensor  # [B, H, N, Dv]
    lse: Tensor  # [B, H, N]
    memory: Tensor  # [B, 1, N]
    final_f: Tensor  # [B, 1, M]
    block_f: Tensor  # [B, blocks * M] F at the first row of each block, for the backward pass
    dead: Tensor  # [B, M] the block from which a column is dead
    living: Tensor  # [B] the share of the visible pairs that was computed


def _shapes(r: Request) -> Results:
    exact = r.query.new_empty(0, dtype=compute_dtype(r.query.dtype))
    batch, heads, rows = r.query.shape[:3]
    keys = r.key.shape[2]
    # In one row: as a size of its own, the number of blocks would be a constant of a compiled graph where it is 1.
    of_blocks = (batch, -(-rows // BLOCK) * keys) if r.gradient and r.rules.selection is not None else 0
    return Results(
        output=r.query.new_empty(batch, heads, rows, r.value.shape[3]),
        lse=exact.new_empty(batch, heads, rows),
        memory=exact.new_empty((batch, 1, rows) if r.wanted.memory else 0),
        final_f=exact.new_empty((batch, 1, keys) if r.wanted.final_f else 0),
        block_f=exact.new_empty(of_blocks),
        dead=exact.new_empty(batch, keys, dtype=torch.int32),
        living=exact.new_empty(batch if r.wanted.living else 0, dtype=torch.float64),
    )


def _forward(r: Request) -> Results:
    found = _shapes(r)
    pairs = torch.zeros(r.query.shape[0], dtype=torch.int64) if r.wanted.living else None
    backward = dict.fromkeys(("d_output", "d_output_stride", "d_memory", "dq", "dk", "dv"))
    _run("selattn_forward", r, found._asdict() | {"living": pairs} | backward)
    return found if pairs is None else found._replace(living=_share(pairs, r))


def _share(living: Tensor, r: Request) -> Tensor:
    """Of the visible pairs, those that were computed; 1 where there is nothing to see."""
    until = None if r.until is None else r.until[:, 0].to(torch.int64)
    pairs = visible_pairs(r.start, until, r.rules.window, r.query.shape[2], r.key.shape[2])
    return torch.where(pairs > 0, living.double() / pairs.clamp(min=1), 1.0)


def _backward(r: Request, saved: Saved, came: Came, needed: frozenset[str]) -> dict[str, Tensor | None]:
    output, lse, d_memory = saved["output"], saved["lse"], came["memory"]
    d_output = torch.zeros_like(output) if came["output"] is None else dense_rows(came["output"].to(output.dtype))
    found = [torch.zeros_like(x, dtype=lse.dtype, memory_format=torch.contiguous_format) for x in r[:3]]
    fields = {
        **saved,
        "d_output": d_output,
        "d_output_stride": d_output,
        "d_memory": None if d_memory is None else d_memory.to(lse.dtype).contiguous(),
        **dict(zip(("dq", "dk", "dv"), found, strict=True)),
        **dict.fromkeys(("memory", "final_f", "living")),
    }
    _run("selattn_backward", r, fields)
    return dict(zip(("query", "key", "value"), found, strict=True))


def _run(function: str, r: Request, results: dict[str, Any]) -> None:
    """Call the library, which writes to the results."""
    if r.query.shape[0] == 0:
        return
    query, key, value = (dense_rows(x) for x in (r.query, r.key, r.value))
    (batch, heads, rows, size), (groups, keys, value_size) = query.shape, value.shape[1:]
    exact, selection = compute_dtype(query.dtype), r.rules.selection
    fields = {
        "B": batch,
        "H": heads,
        "G": groups,
        "N": rows,
        "M": keys,
        "D": size,
        "Dv": value_size,
        "dtype": DTYPES[query.dtype],
        "threads": torch.get_num_threads(),
        "query": query,
        "key": key,
        "value": value,
        "query_stride": query,
        "key_stride": key,
        "value_stride": value,
        **rules_fields(r.rules, query),
        "selecting": -1 if selection is None else selection.heads[0],
        "tau": r.rules.tau,
        "tolerance": r.rules.tolerance,
        "start": None if r.start is None else r.start.expand(batch, keys).contiguous(),
        "until": None if r.until is None else r.until[:, 0].to(torch.int64).contiguous(),
        "initial_f": None if r.initial_f is None else r.initial_f[:, 0].to(exact).contiguous(),
        **results,
    }
    call_library(function, struct("Problem").pack(**fields), who="attention", smaller="a shorter context")


OPERATOR = Operator(
    Kernel(
        name="cpu",
        call=Request,
        results=Results,
        forward=_forward,
        shapes=_shapes,
        backward=_backward,
        saved=("output", "lse", "block_f", "dead"),
        gradients=("query", "key", "value"),
    )
)
