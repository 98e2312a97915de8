"""The passes, made an operator: torch sees one node for each direction, with gradients and shapes."""

from __future__ import annotations

from selattn.ops.backends.triton.backward import backward
from selattn.ops.backends.triton.forward import Found, forward, shapes
from selattn.ops.operator import Kernel, Operator
from selattn.ops.request import Request

OPERATOR = Operator(
    Kernel(
        name="triton",
        call=Request,
        results=Found,
        forward=forward,
        shapes=shapes,
        backward=backward,
        saved=("output", "lse", "block_f", "dead"),
        gradients=("query", "key", "value", "selection_query", "selection_key", "bias", "initial_f"),
    )
)
