"""What a cache asks of the kernels: one step of decoding, and the eviction order of many queries.

Each has a tuple that torch's graphs take (`StepCall`, `OrderCall`), one that its kernel is given (`Step`, `Eviction`)
and what decides its code (`StepHow`, `EvictionHow`). Shapes as in `selattn.ops.order`, with one order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from selattn.ops.backends.triton.configs import cannot_hold, choose
from selattn.ops.backends.triton.prepare import (
    Matrix,
    Rows,
    Switches,
    heads_on,
    launch,
    matrix_of,
    on,
    padded,
    precision_of,
    rows_of,
    switches_of,
)
from selattn.ops.operator import Arguments, in_graph, node
from selattn.ops.order import Order, OrderRequest, Ranking, StepRequest
from selattn.ops.rules import Rules, position_bias
from selattn.ops.selection import Selection

NUMBERS = {"POLICY_SELECTIVE": 0, "POLICY_WINDOW": 3}  # of the policies that the kernels know
MOST_KEPT = 1 << 14  # tokens that one program of an eviction order can hold in its registers
STRIP_BYTES = 64 << 20  # of logits that are held at once


class Step(NamedTuple):
    """One step, as the kernel is given it. Shapes as in `selattn.ops.order`; a row is dense, with one order."""

    query: Rows
    key: Rows  # of the new token, like the three that follow
    value: Rows
    selecting_query: Rows
    selecting_key: Rows
    real: Tensor | None  # [B] bytes, 0 for a row that sits out
    bias: Matrix  # [B or 1, H or 1, 1, used + 1] fp32: of the slots as they are, and behind them of the new token
    selecting_bias: Matrix  # [B or 1, S or 1, 1, used + 1] the same for the selecting heads
    stored_keys: Tensor
    stored_values: Tensor  # not "values": the tuple that Triton makes of this has such an attribute
    selecting_keys: Tensor  # the stored keys, or those of the separate form
    position: Tensor
    f: Tensor | None
    rows: Tensor | None  # [B] int64
    keys_row: int  # how far the rows of each array lie apart
    values_row: int
    selecting_row: int
    position_row: int
    f_row: int
    length: Tensor
    done: Tensor  # [B] int32, zeros: programs that have read all they need
    heads: Tensor | None  # [S] int32
    strength: Tensor | None  # 0-d fp32
    H: int
    G: int
    S: int
    C: int
    used: int
    budget: int
    sinks: int
    window: int
    scale: float
    selecting_scale: float
    cap: float


class StepHow(NamedTuple):
    """What decides the code of the kernel."""

    select: bool
    separate: bool
    switches: Switches
    strength: bool
    softcap: bool
    window: bool
    bias: bool
    some: bool  # some tokens are padding
    rows: bool  # sequence b is in row rows[b]
    evicts: bool  # there is a budget
    policy: int
    D: int
    D_padded: int
    Dv: int
    Dv_padded: int
    Ds: int
    Ds_padded: int
    precision: str


def policy_refusal(policy: Ranking, orders: int) -> str | None:
    """Why the kernels cannot find out who leaves by this policy; None if they can."""
    known = policy.compiled()
    reasons = {
        f"it does not know the policy {policy.name!r}": known is None or known[0] not in NUMBERS,
        "it has one order of eviction for all heads": orders > 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def step_refusal(request: StepRequest) -> str | None:
    """Why the kernel cannot make this step; None if it can."""
    tokens, rules, policy = request.tokens, request.rules, request.policy
    if reason := cannot_hold(tokens.query, tokens.value, tokens.selection_query):
        return reason
    if reason := rules_refusal(rules):
        return reason
    if request.slots.position.shape[1] > 1:
        return "it has one order of eviction for all heads"
    if policy.needs_weights:
        return f"it keeps no scores, which the policy {policy.name!r} needs"
    return None if request.budget is None else policy_refusal(policy, 1)


def rules_refusal(rules: Rules) -> str | None:
    """Why the kernels for decoding and for the order cannot follow these rules; None if they can."""
    return None if rules.pattern is None else "it has no sparse patterns"


def selecting_bias(bias: Tensor, selection: Selection, forms: int) -> Tensor:
    """[B or 1, S or 1, n, M] of the selecting heads. A separate form has none: -inf where none of its heads sees.

    forms: how many masks a separate form has, 0 if there is none.
    """
    if forms:
        nothing, shown = torch.zeros((), dtype=bias.dtype, device=bias.device), bias != -torch.inf
        shown = shown if shown.shape[1] == 1 else shown.unflatten(1, (forms, -1)).any(2)
        return torch.where(shown, nothing, -torch.inf)
    return bias if bias.shape[1] == 1 else bias[:, list(selection.heads)]


def ranked_by(policy: Ranking, budget: int) -> tuple[int, int]:
    """The policy's number, and how many of the first tokens are safe."""
    name, parameter = policy.compiled() or ("POLICY_SELECTIVE", 0.0)
    return NUMBERS[name], min(int(parameter), budget - 1) if name == "POLICY_WINDOW" else 0


class StepCall(NamedTuple):
    """A step, as torch's operator takes it."""

    query: Tensor
    key: Tensor
    value: Tensor
    real: Tensor | None
    selection_query: Tensor | None
    selection_key: Tensor | None
    keys: Tensor
    values: Tensor
    position: Tensor
    f: Tensor
    selection_keys: Tensor | None
    rows: Tensor | None
    length: Tensor
    bias: Tensor | None  # [B or 1, H or 1, 1, used + 1], see `Step`
    rules: Rules
    used: int
    budget: int  # 0: none
    policy: int
    sinks: int


WRITTEN = ("keys", "values", "position", "f", "selection_keys")


def step(request: StepRequest) -> Tensor:
    """The output [B, H, 1, Dv] of the query; the slots are written to, but for their `length`."""
    slots, tokens, rules, budget = request.slots, request.tokens, request.rules, request.budget or 0
    bias = None
    if rules.bias is not None:
        position = slots.position[:, 0, : request.used]
        position = position if request.rows is None else position[request.rows]
        at = torch.cat([position.long(), request.length[:, None]], -1)
        bias = position_bias(rules, tokens.query, at)
    call = StepCall(
        tokens.query,
        tokens.key,
        tokens.value,
        tokens.real,
        tokens.selection_query,
        tokens.selection_key,
        slots.keys,
        slots.values,
        slots.position,
        slots.f,
        slots.selection_keys,
        request.rows,
        request.length,
        bias,
        rules._replace(bias=None),
        request.used,
        budget,
        *ranked_by(request.policy, budget),
    )
    return STEP_NODE(*STEP_ARGUMENTS.flatten(call)) if in_graph(tokens.query) else run_step(call)


def run_step(x: StepCall) -> Tensor:
    """`step`, from what the operator takes."""
    from selattn.ops.backends.triton.kernels.step import step as run

    query, rules, separate = x.query, x.rules, x.selection_query is not None
    selection, strength = rules.selection or Selection(), rules.strength_of(query)
    (batch, heads, _, size), (groups, places, value_size) = query.shape, x.values.shape[1:]
    masks = rules.masks(x.selection_query)
    selecting_size = size if x.selection_query is None else x.selection_query.shape[3]
    out = query.new_empty(batch, heads, 1, value_size)
    if batch == 0:
        return out
    tile = choose(query.device, query.dtype, max(size, value_size, selecting_size)).step
    with on(query.device):
        which = tuple(range(masks)) if separate else selection.heads
        call = Step(
            query=rows_of(query),
            key=rows_of(x.key),
            value=rows_of(x.value),
            selecting_query=rows_of(query if x.selection_query is None else x.selection_query),
            selecting_key=rows_of(x.key if x.selection_key is None else x.selection_key),
            real=None if x.real is None else x.real.contiguous().view(torch.uint8),
            bias=matrix_of(None if x.bias is None else x.bias.float()),
            selecting_bias=matrix_of(
                None if x.bias is None or not masks else selecting_bias(x.bias.float(), selection, masks * separate)
            ),
            stored_keys=x.keys,
            stored_values=x.values,
            selecting_keys=x.keys if x.selection_keys is None else x.selection_keys,
            position=x.position,
            f=x.f if masks else None,
            rows=x.rows,
            keys_row=x.keys.stride(0),
            values_row=x.values.stride(0),
            selecting_row=(x.keys if x.selection_keys is None else x.selection_keys).stride(0),
            position_row=x.position.stride(0),
            f_row=x.f.stride(0),
            length=x.length,
            done=_counters(batch, query.device),
            heads=heads_on(which, query.device) if masks else None,
            strength=None if strength is None else strength.to(torch.float32),
            H=heads,
            G=groups,
            S=max(masks, 1),
            C=places,
            used=x.used,
            budget=x.budget,
            sinks=x.sinks,
            window=rules.window or 0,
            scale=rules.scale_of(query),
            selecting_scale=selecting_size**-0.5 if separate else rules.scale_of(query),
            cap=rules.softcap or 0.0,
        )
        how = StepHow(
            select=masks > 0,
            separate=separate,
            switches=switches_of(selection),
            strength=strength is not None,
            softcap=rules.softcap is not None,
            window=rules.window is not None,
            bias=x.bias is not None,
            some=x.real is not None,
            rows=x.rows is not None,
            evicts=x.budget > 0,
            policy=x.policy,
            D=size,
            D_padded=padded(size),
            Dv=value_size,
            Dv_padded=padded(value_size),
            Ds=selecting_size,
            Ds_padded=padded(selecting_size),
            precision=precision_of(),
        )
        launch(run, (groups, batch), call, out, how, ROWS=padded(heads // groups), BC=tile.keys, **tile.effort())
    return out


def _step_shape(x: StepCall) -> Tensor:
    return x.query.new_empty(*x.query.shape[:3], x.value.shape[3])


STEP_ARGUMENTS = Arguments(StepCall)
STEP_NODE = node("triton_step", STEP_ARGUMENTS, run_step, _step_shape, results=1, writes=WRITTEN)


_done: dict[tuple[torch.device, int], Tensor] = {}


def _counters(batch: int, device: torch.device) -> Tensor:
    """[B] int32 zeros, one array for each stream: every step leaves them as it found them."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    found = _done.get((device, stream))
    if found is None or found.shape[0] < batch:
        found = _done[device, stream] = torch.zeros(max(batch, 256), dtype=torch.int32, device=device)
    return found


class Eviction(NamedTuple):
    """An eviction order, as the kernels are given it; N is n."""

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


class OrderCall(NamedTuple):
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
    call = OrderCall(
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
    until, f = ORDER_NODE(*ORDER_ARGUMENTS.flatten(call)) if in_graph(query) else run_order(call)
    scores = before.score.expand(tokens.query.shape[2], *before.score.shape) if request.history else None
    return Order(until, f, before.score), scores


def run_order(x: OrderCall) -> tuple[Tensor, Tensor]:
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


def _order_shapes(x: OrderCall) -> tuple[Tensor, Tensor]:
    until, f = (torch.empty_like(y, memory_format=torch.contiguous_format) for y in x.before[:2])
    return until, f


ORDER_ARGUMENTS = Arguments(OrderCall)
ORDER_NODE = node("triton_order", ORDER_ARGUMENTS, run_order, _order_shapes, results=2)
