"""Selective attention in tiles with PyTorch alone, in linear memory: `strips`, made an operator.

It is registered with torch, so that a compiled graph sees one node for each direction, whatever the length.
"""

from __future__ import annotations

import torch
from torch import Tensor

from selattn.ops.backends import strips
from selattn.ops.backends.base import Backend
from selattn.ops.operator import Came, Kernel, Operator, Saved, attend
from selattn.ops.precision import compute_dtype
from selattn.ops.request import Attention, Request


class Chunked(Backend):
    """Strips of the matrix in plain PyTorch."""

    name = "chunked"
    plain = False

    def refusal(self, request: Request) -> str | None:
        return "it never holds the attention weights of more than one strip" if request.wanted.weights else None

    def attend(self, request: Request) -> Attention:
        # The seed is drawn here, outside of the operator, so that checkpointing and torch.manual_seed govern it.
        seed = torch.randint(1 << 31, (), dtype=torch.int64) if request.rules.dropout_p else None
        return attend(OPERATOR, request._replace(seed=seed))


def _seed(request: Request) -> int:
    return 0 if request.seed is None else int(request.seed)


def _forward(request: Request) -> strips.Forward:
    return strips.forward(request, _seed(request))


def _shapes(request: Request) -> strips.Forward:
    query, keys, masks = request.query, request.key.shape[2], request.masks
    batch, heads, rows = query.shape[:3]
    exact = query.new_empty(0, dtype=compute_dtype(query.dtype))
    return strips.Forward(
        output=query.new_empty(batch, heads, rows, request.value.shape[3]),
        lse=exact.new_empty(batch, heads, rows),
        f=exact.new_empty(batch, masks, rows, keys) if request.wanted.f else exact,
        memory=exact.new_empty(batch, masks, rows) if request.wanted.memory else exact.new_empty(0),
        final_f=exact.new_empty(batch, masks, keys),
    )


def _backward(request: Request, saved: Saved, came: Came, needed: frozenset[str]) -> dict[str, Tensor | None]:
    output, lse = saved["output"], saved["lse"]
    d_output = torch.zeros_like(output) if came["output"] is None else came["output"]
    d_results = (d_output, came["f"], came["memory"], came["final_f"])
    return strips.backward(request, _seed(request), (output, lse), *d_results, bias_grad="bias" in needed)._asdict()


OPERATOR = Operator(
    Kernel(
        name="chunked",
        call=Request,
        results=strips.Forward,
        forward=_forward,
        shapes=_shapes,
        backward=_backward,
        saved=("output", "lse"),
        gradients=strips.Gradients._fields,
    )
)
