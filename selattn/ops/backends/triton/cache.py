"""What a cache asks of the kernels: one step of decoding, and the eviction order of many queries.

A graph of torch takes `StepCall` and `OrderCall`; the kernels take `StepArguments` and `OrderArguments`. Shapes as in
`selattn.ops.eviction`, with one order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from selattn.ops.autograd import Arguments, in_graph, node
from selattn.ops.backends.triton.configs import cannot_hold, choose
from selattn.ops.backends.triton.prepare import (
    Matrix,
    Rows,
    how_of,
    launch,
    matrix_of,
    on,
    padded,
    rows_of,
    selecting_heads,
)
from selattn.ops.eviction import (
    COMPILED,
    Order,
    OrderCall,
    OrderRequest,
    Ranking,
    StepRequest,
    Stored,
    order_call,
    policy_number,
    stored,
)
from selattn.ops.request import Tokens
from selattn.ops.rules import Rules, step_bias
from selattn.ops.selection import Selection

KNOWN = ("POLICY_SELECTIVE", "POLICY_WINDOW")  # the policies that the kernels know, by their places in `COMPILED`
NO_PATTERNS = "it has no sparse patterns"
MOST_KEPT = 1 << 14  # tokens that one program of an eviction order can hold in its registers
STRIP_BYTES = 64 << 20  # of logits that are held at once


class StepArguments(NamedTuple):
    """One step, as the kernel is given it. Shapes as in `selattn.ops.eviction`; a row is dense, with one order."""

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


def policy_refusal(policy: Ranking, orders: int) -> str | None:
    """Why the kernels cannot rank by this policy; None if they can."""
    known = policy.compiled()
    reasons = {
        f"it does not know the policy {policy.name!r}": known is None or known[0] not in KNOWN,
        "it has one order of eviction for all heads": orders > 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def step_refusal(request: StepRequest) -> str | None:
    """Why the kernel cannot make this step; None if it can."""
    tokens, rules, policy = request.tokens, request.rules, request.policy
    if reason := cannot_hold(tokens.query, tokens.value, tokens.selection_query):
        return reason
    if rules.pattern is not None:
        return NO_PATTERNS
    if request.slots.position.shape[1] > 1:
        return "it has one order of eviction for all heads"
    if policy.needs_weights:
        return f"it keeps no scores, which the policy {policy.name!r} needs"
    return None if request.budget is None else policy_refusal(policy, 1)


def selecting_bias(bias: Tensor, selection: Selection, forms: int) -> Tensor:
    """[B or 1, S or 1, n, M] of the selecting heads. A separate form has none: -inf where none of its heads sees.

    forms: how many masks a separate form has, 0 if there is none.
    """
    if forms:
        nothing, shown = torch.zeros((), dtype=bias.dtype, device=bias.device), bias != -torch.inf
        shown = shown if shown.shape[1] == 1 else shown.unflatten(1, (forms, -1)).any(2)
        return torch.where(shown, nothing, -torch.inf)
    return bias if bias.shape[1] == 1 else bias[:, list(selection.heads)]


def sinks_of(policy: int, parameter: float, budget: int) -> int:
    """How many of the first tokens a policy of that number never evicts."""
    return min(int(parameter), budget - 1) if COMPILED[policy] == "POLICY_WINDOW" else 0


class StepCall(NamedTuple):
    """A `StepRequest`, as torch's operator takes it."""

    tokens: Tokens
    slots: Stored
    rows: Tensor | None
    length: Tensor
    bias: Tensor | None  # [B or 1, H or 1, 1, used + 1], see `StepArguments`
    rules: Rules
    used: int
    budget: int  # 0: none
    policy: int
    parameter: float


WRITTEN = tuple(f"slots_{name}" for name in ("keys", "values", "position", "f", "selection_keys"))


def step(request: StepRequest) -> Tensor:
    """The output [B, H, 1, Dv] of the query; the slots are written to, but for their `length`."""
    slots, tokens, rules, bias = stored(request.slots), request.tokens, request.rules, None
    if rules.bias is not None:
        position = slots.position if request.rows is None else slots.position[request.rows]
        bias = step_bias(rules, tokens.query, position[..., : request.used], request.length)
    rules, budget, policy = rules._replace(bias=None), request.budget or 0, policy_number(request.policy)
    call = StepCall(tokens, slots, request.rows, request.length, bias, rules, request.used, budget, *policy)
    return STEP_NODE(*STEP_ARGUMENTS.flatten(call)) if in_graph(tokens.query) else run_step(call)


def run_step(x: StepCall) -> Tensor:
    """`step`, from what the operator takes."""
    from selattn.ops.backends.triton.kernels.step import step as run

    new, slots, rules = x.tokens, x.slots, x.rules
    query, form = new.query, new.selection_query
    selection, strength = rules.selection or Selection(), rules.strength_of(query)
    (batch, heads, _, size), (groups, places, value_size) = query.shape, slots.values.shape[1:]
    how = how_of(rules, form, x.bias is not None, size, value_size)
    how = how._replace(some=new.real is not None, rows=x.rows is not None, evicts=x.budget > 0, policy=x.policy)
    masks, separate = rules.masks(form), form is not None
    out = query.new_empty(batch, heads, 1, value_size)
    if batch == 0:
        return out
    tile = choose(query.device, query.dtype, max(size, value_size, how.Ds)).step
    bias = None if x.bias is None else x.bias.float()
    selecting_keys = slots.keys if slots.selection_keys is None else slots.selection_keys
    with on(query.device):
        call = StepArguments(
            query=rows_of(query),
            key=rows_of(new.key),
            value=rows_of(new.value),
            selecting_query=rows_of(query if form is None else form),
            selecting_key=rows_of(new.key if new.selection_key is None else new.selection_key),
            real=None if new.real is None else new.real.contiguous().view(torch.uint8),
            bias=matrix_of(bias),
            selecting_bias=matrix_of(
                None if bias is None or not masks else selecting_bias(bias, selection, masks * separate)
            ),
            stored_keys=slots.keys,
            stored_values=slots.values,
            selecting_keys=selecting_keys,
            position=slots.position,
            f=slots.f if masks else None,
            rows=x.rows,
            keys_row=slots.keys.stride(0),
            values_row=slots.values.stride(0),
            selecting_row=selecting_keys.stride(0),
            position_row=slots.position.stride(0),
            f_row=slots.f.stride(0),
            length=x.length,
            done=_counters(batch, query.device),
            heads=selecting_heads(selection, masks, separate, query.device),
            strength=None if strength is None else strength.to(torch.float32),
            H=heads,
            G=groups,
            S=max(masks, 1),
            C=places,
            used=x.used,
            budget=x.budget,
            sinks=sinks_of(x.policy, x.parameter, x.budget),
            window=rules.window or 0,
            scale=rules.scale_of(query),
            selecting_scale=how.Ds**-0.5 if separate else rules.scale_of(query),
            cap=rules.softcap or 0.0,
        )
        launch(run, (groups, batch), call, out, how, ROWS=padded(heads // groups), BC=tile.keys, **tile.effort())
    return out


def _step_shape(x: StepCall) -> Tensor:
    return x.tokens.query.new_empty(*x.tokens.query.shape[:3], x.tokens.value.shape[3])


STEP_ARGUMENTS = Arguments(StepCall)
STEP_NODE = node("triton_step", STEP_ARGUMENTS, run_step, _step_shape, results=1, writes=WRITTEN)


_done: dict[tuple[torch.device, int], Tensor] = {}


def _counters(batch: int, device: torch.device) -> Tensor:
    """[B] int32 zeros, one array for each stream: every step leaves them as it found them."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    zeros = _done.get((device, stream))
    if zeros is None or zeros.shape[0] < batch:
        zeros = _done[device, stream] = torch.zeros(max(batch, 256), dtype=torch.int32, device=device)
    return zeros


class OrderArguments(NamedTuple):
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


def order_refusal(request: OrderRequest) -> str | None:
    """Why the kernels cannot compute this order; None if they can."""
    tokens = request.tokens
    if reason := cannot_hold(tokens.query, None, tokens.selection_query):
        return reason
    if request.rules.pattern is not None:
        return NO_PATTERNS
    if reason := policy_refusal(request.policy, request.before.until.shape[1]):
        return reason
    kept = capacity(request.budget, request.keys.shape[2], tokens.query.shape[2])
    return f"it keeps at most {MOST_KEPT:,} tokens" if kept > MOST_KEPT else None


def capacity(budget: int, entries: int, queries: int) -> int:
    """How many tokens can be kept at once: the budget, or what was kept before the first query."""
    return max(min(budget, entries), entries - queries, 1)


def order(request: OrderRequest) -> tuple[Order, Tensor | None]:
    """The order after the queries, and the scores after each of them, which no query of these policies changes."""
    call, score = order_call(request), request.before.score
    until, f = ORDER_NODE(*ORDER_ARGUMENTS.flatten(call)) if in_graph(call.query) else run_order(call)
    scores = score.expand(call.query.shape[2], *score.shape) if request.history else None
    return Order(until, f, score), scores


def run_order(x: OrderCall) -> tuple[Tensor, Tensor]:
    """`until` and F after the queries."""
    from selattn.ops.backends.triton.kernels.order import evict, strip_logits

    rules, selection, separate = x.rules, x.rules.selection or Selection(), x.form_query is not None
    query = x.query if x.form_query is None else x.form_query
    keys = x.keys if x.form_keys is None else x.form_keys
    (batch, heads, count, size), (groups, entries) = query.shape, keys.shape[1:3]
    masks = rules.masks(x.form_query) if x.selects else 0
    until, f = (y.clone(memory_format=torch.contiguous_format) for y in x.before[:2])
    if batch == 0 or count == 0:
        return until, f
    config, strength = choose(query.device, query.dtype, size), rules.strength_of(query)
    rows, tile = config.rows, config.select
    strip = max(rows, min(count, STRIP_BYTES // (4 * batch * max(masks, 1) * entries)) // rows * rows)
    bias = None
    if x.bias is not None and masks:
        bias = selecting_bias(x.bias, selection, masks * separate).float()
    call = OrderArguments(
        query=rows_of(query),
        key=rows_of(keys),
        positions=x.positions.to(torch.int32).contiguous(),
        until=until,
        f=f if masks else None,
        heads=selecting_heads(selection, masks, separate, query.device),
        strength=None if strength is None else strength.to(torch.float32),
        bias=matrix_of(bias),
        N=count,
        M=entries,
        H=heads,
        G=groups,
        S=max(masks, 1),
        strip=strip,
        budget=min(x.budget, entries + 1),
        sinks=sinks_of(x.policy, x.parameter, x.budget),
        window=rules.window or 0,
        scale=size**-0.5 if separate else rules.scale_of(query),
        cap=rules.softcap or 0.0,
    )
    how = how_of(rules, x.form_query, bias is not None, size, size, x.selects)
    how = how._replace(softcap=how.softcap and not separate, policy=x.policy)
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


def _kept(call: OrderArguments, slots: int) -> Tensor:
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
