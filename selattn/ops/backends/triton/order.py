"""The eviction order of many queries: what kernels/order.py is given, and what it cannot do."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from selattn.ops.arguments import Arguments
from selattn.ops.backends.triton.arguments import Matrix, Rows, Switches, switches_of
from selattn.ops.backends.triton.configs import choose
from selattn.ops.backends.triton.launch import launch, on
from selattn.ops.backends.triton.prepare import heads_on, matrix_of, padded, precision_of, rows_of
from selattn.ops.backends.triton.step import policy_refusal, ranked_by, rules_refusal, selecting_bias
from selattn.ops.backends.triton.support import cannot_hold
from selattn.ops.order import Order, OrderRequest
from selattn.ops.rules import Rules, position_bias
from selattn.ops.selection import Selection

MOST_KEPT = 1 << 14  # tokens that one program can hold in its registers
STRIP_BYTES = 64 << 20  # of logits that are held at once


class Eviction(NamedTuple):
    """An eviction order, as the kernels are given it. Shapes as in `selattn.ops.order`, with one order; N is n."""

    query: Rows  # the selecting heads are among these
    key: Rows
    positions: Tensor  # [B, M] int32
    until: Tensor  # [B, M] int64
    f: Tensor | None  # [B, S, M] fp32
    heads: Tensor | None  # [S] int32
    strength: Tensor | None  # 0-d fp32
    bias: Matrix  # [B or 1, S or 1, n, M] fp32, of the selecting heads
    N: int
    M: int
    H: int
    G: int
    S: int
    strip: int  # rows whose logits are held at once
    budget: int
    sinks: int
    window: int
    scale: float
    cap: float


class EvictionHow(NamedTuple):
    """What decides the code of the kernels."""

    select: bool
    separate: bool
    switches: Switches
    strength: bool
    softcap: bool
    window: bool
    bias: bool
    policy: int
    D: int
    D_padded: int
    precision: str


def order_refusal(request: OrderRequest) -> str | None:
    """Why the kernels cannot compute this order; None if they can."""
    tokens = request.tokens
    if reason := cannot_hold(tokens.query, None, tokens.selection_query) or rules_refusal(request.rules):
        return reason
    if reason := policy_refusal(request.policy, request.before.until.shape[1]):
        return reason
    kept = capacity(request.budget, request.keys.shape[2], tokens.query.shape[2])
    return f"it keeps at most {MOST_KEPT:,} tokens" if kept > MOST_KEPT else None


def capacity(budget: int, entries: int, queries: int) -> int:
    """How many tokens can be kept at once: the budget, or what was kept before the first query."""
    return max(min(budget, entries), entries - queries, 1)


class Call(NamedTuple):
    """An eviction order, as torch's operator takes it."""

    query: Tensor  # those of the separate form, if there is one
    keys: Tensor
    positions: Tensor
    before: Order
    bias: Tensor | None  # [B or 1, S or 1, n, M]
    rules: Rules
    separate: bool
    selects: bool  # else F is not needed
    budget: int
    policy: int
    sinks: int


def order(request: OrderRequest) -> tuple[Order, Tensor | None]:
    """The order after the queries, and the scores after each of them, which no query of these policies changes."""
    tokens, before, rules = request.tokens, request.before, request.rules
    query, keys = (tokens.query, request.keys)
    if tokens.selection_query is not None and request.selection_keys is not None:
        query, keys = tokens.selection_query, request.selection_keys
    selects, separate = rules.selection is not None and request.policy.needs_f, tokens.selection_query is not None
    bias = position_bias(rules, tokens.query, request.positions) if selects else None
    if bias is not None and rules.selection is not None:
        bias = selecting_bias(bias.detach(), rules.selection, query.shape[1] * separate)
    call = Call(
        query.detach(),
        keys.detach(),
        request.positions,
        Order(before.until, before.f.detach(), before.score.detach()),
        bias,
        rules._replace(scale=rules.scale_of(tokens.query), bias=None),
        separate,
        selects,
        request.budget,
        *ranked_by(request.policy, request.budget),
    )
    # In a compiled graph it is one node; else it is called at once, which is quicker.
    until, f = NODE(*ARGUMENTS.flatten(call)) if torch.compiler.is_compiling() else run_order(call)
    scores = before.score.expand(tokens.query.shape[2], *before.score.shape) if request.history else None
    return Order(until, f, before.score), scores


def run_order(x: Call) -> tuple[Tensor, Tensor]:
    """`until` and F after the queries."""
    from selattn.ops.backends.triton.kernels.order import evict, strip_logits

    query, rules, selection = x.query, x.rules, x.rules.selection or Selection()
    (batch, heads, count, size), (groups, entries) = query.shape, x.keys.shape[1:3]
    masks = x.before.f.shape[1] if x.selects else 0
    until, f = (y.clone(memory_format=torch.contiguous_format) for y in x.before[:2])
    if batch == 0 or count == 0:
        return until, f
    config, strength = choose(query.device, query.dtype, size), rules.strength_of(query)
    rows, tile = config.rows, config.select
    strip = max(rows, min(count, STRIP_BYTES // (4 * batch * max(masks, 1) * entries)) // rows * rows)
    which = tuple(range(masks)) if x.separate else selection.heads
    call = Eviction(
        query=rows_of(query),
        key=rows_of(x.keys),
        positions=x.positions.to(torch.int32).contiguous(),
        until=until,
        f=f if masks else None,
        heads=heads_on(which, query.device) if masks else None,
        strength=None if strength is None else strength.to(torch.float32),
        bias=matrix_of(None if x.bias is None else x.bias.float()),
        N=count,
        M=entries,
        H=heads,
        G=groups,
        S=max(masks, 1),
        strip=strip,
        budget=min(x.budget, entries + 1),
        sinks=x.sinks,
        window=rules.window or 0,
        scale=size**-0.5 if x.separate else rules.scale_of(query),
        cap=rules.softcap or 0.0,
    )
    how = EvictionHow(
        select=masks > 0,
        separate=x.separate,
        switches=switches_of(selection),
        strength=strength is not None,
        softcap=rules.softcap is not None and not x.separate,
        window=rules.window is not None,
        bias=x.bias is not None,
        policy=x.policy,
        D=size,
        D_padded=padded(size),
        precision=precision_of(),
    )
    with on(query.device):
        kept = _kept(call, padded(capacity(x.budget, entries, count)))
        logits = f.new_empty((batch, masks, strip, entries) if masks else 0, dtype=torch.float32)
        slots = kept.shape[1]
        for first in range(0, count, strip):
            some = min(strip, count - first)
            if masks:
                launch(
                    strip_logits,
                    (-(-entries // tile.keys), -(-some // rows), batch * masks),
                    *(call, logits, first, how),
                    BM=rows,
                    BN=tile.keys,
                    **tile.effort(),
                )
            launch(
                evict,
                (batch,),
                *(call, logits, kept, first, some, how),
                SLOTS=slots,
                MASKS=1 << (call.S - 1).bit_length(),
                num_warps=max(1, min(16, slots // 256)),
                num_stages=1,
            )
    return until, f


def _kept(call: Eviction, slots: int) -> Tensor:
    """[B, slots] int32: the entries that are kept before the first query, in their order, and then -1.

    They are of the document in which that query stands, where a row has several.
    """
    past = call.M - call.N
    before, index = call.positions[:, :past], torch.arange(past, device=call.until.device)
    begin = torch.where(before == 0, index, 0).amax(-1, keepdim=True) if past else before
    kept = (before >= 0) & (call.until[:, 0, :past] > past) & (index >= begin)
    entry = torch.where(kept, index, call.M).sort(-1).values
    entry = torch.where(entry < call.M, entry, -1).to(torch.int32)
    return torch.nn.functional.pad(entry, (0, slots - past), value=-1).contiguous()


ARGUMENTS = Arguments(Call)
NODE = torch.library.custom_op(
    "selattn::triton_order",
    lambda *args: run_order(ARGUMENTS.build(args)),
    mutates_args=(),
    schema=f"({ARGUMENTS.schema}) -> (Tensor, Tensor)",
)


@NODE.register_fake
def _(*args: Any) -> tuple[Tensor, Tensor]:
    before = ARGUMENTS.build(args).before
    until, f = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in before[:2])
    return until, f
