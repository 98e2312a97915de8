"""What torch's transforms find: `torch.func` (grad, vmap, jvp), dual numbers, and torch.compile around them.

A registered operator that has a backward pass has no forward-mode derivative, and torch takes that for zero without a
word; `torch.func.grad` does not find its backward pass at all. So the first is refused, and for the second the operator
is wrapped once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from selattn.ops.request import Request


def in_transform() -> bool:
    """Whether a transform of `torch.func` is under way."""
    return torch._C._are_functorch_transforms_active()


def differentiated(request: Request) -> bool:
    """Whether a backward pass can follow; inside of torch.func an input does not tell."""
    return (request.needs_grad or in_transform()) and torch.is_grad_enabled()


def refusal(request: Request) -> str | None:
    """Why an operator that is not plain PyTorch cannot run here; None if it can."""
    if _forward_mode(request):
        return "it has no forward-mode derivative (torch.func.jvp, dual numbers)"
    if in_transform() and torch.compiler.is_compiling():
        return "it cannot be compiled inside a transform of torch.func"
    return None


def _forward_mode(request: Request) -> bool:
    """Whether a tangent comes with an input. Inside torch.func that cannot be asked: then one is expected."""
    if forward_ad._current_level < 0:
        return False
    return in_transform() or any(forward_ad.unpack_dual(x).tangent is not None for x in request.differentiable)


def save_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    """For an operator whose backward pass only says that there is none."""


class Operator:
    """A registered operator with its backward pass, under `torch.func`, too. Called like the operator."""

    def __init__(self, op: Any, save: Callable[..., None], differentiate: Callable[..., Any]) -> None:
        op.register_autograd(differentiate, setup_context=save)
        op.register_vmap(lambda info, in_dims, *args: one_by_one(op, info.batch_size, in_dims, args))
        parts = {"forward": lambda *args: op(*args), "setup_context": save, "backward": differentiate}
        found = {name: staticmethod(part) for name, part in parts.items()} | {"generate_vmap_rule": True}
        self.op = op
        self.function: Any = type(op._name, (torch.autograd.Function,), found)

    def __call__(self, *args: Any) -> Any:
        return self.function.apply(*args) if in_transform() else self.op(*args)


def one_by_one(op: Any, count: int, in_dims: tuple[int | None, ...], args: tuple[Any, ...]) -> tuple[Any, Any]:
    """vmap: the operator has a batch of its own, but what it takes for all rows (a bias, a seed) may differ here."""

    def each(i: int) -> Any:
        dims = (dim if isinstance(x, torch.Tensor) else None for x, dim in zip(args, in_dims, strict=True))
        return op(*(x if dim is None else x.select(dim, i) for x, dim in zip(args, dims, strict=True)))

    found = [each(i) for i in range(count)]
    if isinstance(found[0], torch.Tensor):
        return torch.stack(found), 0
    stacked = tuple(torch.stack(parts) for parts in zip(*found, strict=True))
    return stacked, (0,) * len(stacked)
