"""Gradients end at a cache: what earlier tokens brought is stored without its history. Nobody learns from the rest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selattn.errors import SelattnError
from selattn.ops import Attention, AuxOutput
from selattn.ops.operator import in_transform
from selattn.ops.request import Tokens
from selattn.ops.rules import Rules

MESSAGE = "a cache cuts gradients off: pass the whole text in one forward, without past_key_values, to learn from it"


class _Cut(torch.autograd.Function):
    """A result as it is; whoever asks for its gradient is told that there is none."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, *inputs: Tensor) -> Tensor:
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise SelattnError(MESSAGE)


def needed(tokens: Tokens) -> bool:
    """Whether somebody could ask for gradients."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tokens)


def refuse_transforms() -> None:
    """What lies in a cache has to outlive the call; inside of torch.func it would not."""
    if in_transform():
        raise SelattnError(
            "a cache cannot be filled inside a transform of torch.func: pass the whole text in one forward, "
            "without past_key_values"
        )


def detached(tokens: Tokens, rules: Rules) -> tuple[Tokens, Rules]:
    """The same with no history."""
    strength = rules.strength.detach() if isinstance(rules.strength, Tensor) else rules.strength
    return Tokens(*(None if x is None else x.detach() for x in tokens)), rules._replace(strength=strength)  # type: ignore[arg-type]


def refuse_backward(result: Attention, tokens: Tokens) -> Attention:
    """The result, of which the backward pass is an error and not a part of the gradient."""
    if torch.compiler.is_compiling():  # which would make the backward pass now
        raise SelattnError("a compiled step with a cache has no gradients: run it under torch.no_grad()")
    inputs = [x for x in tokens if x is not None]

    def cut(x: Tensor | None) -> Any:
        return None if x is None else _Cut.apply(x, *inputs)

    return Attention(cut(result.output), AuxOutput(*map(cut, result.aux)), cut(result.evicted_at))
