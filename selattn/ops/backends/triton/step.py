"""One step of decoding: what kernels/step.py is given, and what it cannot do."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from selattn.ops.arguments import Arguments
from selattn.ops.backends.triton.arguments import Matrix, Rows, Switches, switches_of
from selattn.ops.backends.triton.configs import choose
from selattn.ops.backends.triton.launch import launch, on
from selattn.ops.backends.triton.prepare import heads_on, matrix_of, padded, precision_of, rows_of
from selattn.ops.backends.triton.support import cannot_hold
from selattn.ops.order import Ranking, StepRequest
from selattn.ops.rules import Rules, position_bias
from selattn.ops.selection import Selection

NUMBERS = {"POLICY_SELECTIVE": 0, "POLICY_WINDOW": 3}  # of the policies that kernels/step.py knows


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


class Call(NamedTuple):
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
    call = Call(
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
    # In a compiled graph it is one node; else it is called at once, which is quicker.
    return NODE(*ARGUMENTS.flatten(call)) if torch.compiler.is_compiling() else run_step(call)


def run_step(x: Call) -> Tensor:
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


ARGUMENTS = Arguments(Call)


def _schema() -> str:
    """That of the operator, which says what is written to."""
    found = ARGUMENTS.schema
    for letter, name in zip("abcde", WRITTEN, strict=True):
        found = found.replace(f"Tensor {name},", f"Tensor({letter}!) {name},")
        found = found.replace(f"Tensor? {name},", f"Tensor({letter}!)? {name},")
    return f"({found}) -> Tensor"


NODE = torch.library.custom_op(
    "selattn::triton_step", lambda *args: run_step(ARGUMENTS.build(args)), mutates_args=WRITTEN, schema=_schema()
)


@NODE.register_fake
def _(*args: Any) -> Tensor:
    call = ARGUMENTS.build(args)
    return call.query.new_empty(*call.query.shape[:3], call.value.shape[3])


_done: dict[tuple[torch.device, int], Tensor] = {}


def _counters(batch: int, device: torch.device) -> Tensor:
    """[B] int32 zeros, one array for each stream: every step leaves them as it found them."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    found = _done.get((device, stream))
    if found is None or found.shape[0] < batch:
        found = _done[device, stream] = torch.zeros(max(batch, 256), dtype=torch.int32, device=device)
    return found
