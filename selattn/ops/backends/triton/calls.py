"""Calls on tensors that are nowhere (the meta device): they launch what they would launch on a GPU.

`launch.instead` catches the launches. So kernels can be compiled, and their addresses looked at, without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from selattn.ops.backends.triton import battery, order, step
from selattn.ops.backends.triton.backward import backward
from selattn.ops.backends.triton.forward import forward
from selattn.ops.backends.triton.operator import OPERATOR
from selattn.ops.order import Order
from selattn.ops.request import AuxRequest, Request
from selattn.ops.rules import Rules
from selattn.ops.selection import Selection

NOWHERE = torch.device("meta")
BATCH, HEADS, GROUPS, TOKENS, BUDGET = 2, 32, 16, 4096, 256
RULES = Rules(Selection())


def _nothing(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=NOWHERE)


def both_passes(request: Request) -> None:
    """Forward and backward, with a gradient of everything that comes back, for every input."""
    found = forward(request)
    saved = {name: getattr(found, name) for name in OPERATOR.kernel.saved}
    wanted = {"output": True, "memory": request.wanted.memory, "final_f": request.wanted.final_f}
    came = {name: torch.empty_like(getattr(found, name)) if asked else None for name, asked in wanted.items()}
    given = frozenset(name for name in OPERATOR.kernel.gradients if getattr(request, name) is not None)
    backward(request, saved, came, given)


def plain(dtype: torch.dtype, size: int, groups: int) -> Request:
    """Attention as it is by default: whole sequences, M wanted."""
    query = _nothing(BATCH, HEADS, TOKENS, size, dtype=dtype)
    key, value = (_nothing(BATCH, groups, TOKENS, size, dtype=dtype) for _ in range(2))
    return Request(query, key, value, RULES, AuxRequest(memory=True))


def situation(name: str, dtype: torch.dtype, size: int) -> Request:
    """A call of the battery."""
    return battery.make(name, battery.Size(320, size, dtype, NOWHERE))


def one_step(dtype: torch.dtype, size: int, rules: Rules = RULES, separate: int = 0, biased: bool = False) -> None:
    """A step of decoding over full slots. `separate`: masks of a separate form; `biased`: a bias by positions."""
    masks = separate or rules.masks(None)
    query, new = (_nothing(BATCH, heads, 1, size, dtype=dtype) for heads in (HEADS, GROUPS))
    stored = _nothing(BATCH, GROUPS, BUDGET, size, dtype=dtype)
    own = _nothing(BATCH, separate, 1, size, dtype=dtype) if separate else None
    call = step.Call(
        query,
        new,
        new,
        None,
        own,
        own,
        stored,
        stored,
        _nothing(BATCH, 1, BUDGET, dtype=torch.int32),
        _nothing(BATCH, masks, 1, BUDGET),
        _nothing(BATCH, separate, BUDGET, size, dtype=dtype) if separate else None,
        _nothing(BATCH, dtype=torch.int64),
        _nothing(BATCH, dtype=torch.int64),
        _nothing(1, HEADS, 1, BUDGET + 1) if biased else None,
        rules,
        BUDGET,
        BUDGET,
        0,
        0,
    )
    step.run_step(call)


def one_order(dtype: torch.dtype, size: int, rules: Rules = RULES, separate: int = 0, biased: bool = False) -> None:
    """The eviction order of a prompt. `separate`: masks of a separate form; `biased`: a bias by positions."""
    masks = separate or rules.masks(None)
    query = _nothing(BATCH, separate or HEADS, TOKENS, size, dtype=dtype)
    keys = _nothing(BATCH, separate or GROUPS, TOKENS, size, dtype=dtype)
    f = _nothing(BATCH, masks, TOKENS)
    before = Order(_nothing(BATCH, 1, TOKENS, dtype=torch.int64), f, f)
    positions = _nothing(BATCH, TOKENS, dtype=torch.int64)
    bias = _nothing(1, masks, TOKENS, TOKENS) if biased else None
    order.run_order(order.Call(query, keys, positions, before, bias, rules, bool(separate), masks > 0, BUDGET, 0, 0))


Call = Callable[[torch.dtype, int], Any]

# What every user runs, by name.
CALLS: dict[str, Call] = {
    "attention": lambda dtype, size: both_passes(plain(dtype, size, HEADS)),
    "attention, grouped heads": lambda dtype, size: both_passes(plain(dtype, size, GROUPS)),
    "decode step": one_step,
    "eviction order": one_order,
}

_EVERYTHING = Rules(Selection((3, 1), relu=False, shift=False), strength=0.5, softcap=5.0, window=99)

# What some run.
RARER: dict[str, Call] = {
    **{
        name: lambda dtype, size, name=name: both_passes(situation(name, dtype, size))  # type: ignore[misc]
        for name in battery.SITUATIONS
    },
    "decode step: everything": lambda dtype, size: one_step(dtype, size, _EVERYTHING, biased=True),
    "decode step: separate form": lambda dtype, size: one_step(dtype, size, RULES, 2),
    "decode step: standard": lambda dtype, size: one_step(dtype, size, Rules()),
    "eviction order: everything": lambda dtype, size: one_order(dtype, size, _EVERYTHING, biased=True),
    "eviction order: separate form": lambda dtype, size: one_order(dtype, size, RULES, 2),
    "eviction order: standard": lambda dtype, size: one_order(dtype, size, Rules()),
}
