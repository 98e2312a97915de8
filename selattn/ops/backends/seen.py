"""Products over what is seen, in which nothing else matters.

0 * NaN is NaN: in a plain product a number that a row does not see (padding, another document, a later token, memory
that nobody has written) still reaches it. Here it does not, neither forward nor backward. What a row sees counts as it
is: a NaN comes out as NaN.

    seen_logits(x, y, seen)    x y^T where seen, 0 elsewhere
    seen_product(a, b, seen)   sum over the k that row i sees of a[i, k] b[k]

Each is the other's derivative, so that both can be differentiated any number of times, backward and forward.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from selattn.ops.transforms import in_transform, one_by_one


def finite(*tensors: Tensor | None) -> bool:
    """Whether all numbers are finite. A sum that overflows says no, too: then care is taken for nothing."""
    for x in tensors:
        if x is None:
            continue
        exact = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else None
        if not math.isfinite(x.sum(dtype=exact).item()):
            return False
    return True


def careful_product(a: Tensor, b: Tensor, seen: Tensor) -> Tensor:
    """[..., n, m], [..., m, d] and [..., n, m] to [..., n, d]; no matter what is not seen."""
    odd = ~b.isfinite().all(-1)  # these are added one by one, to the rows that see them
    a = a.masked_fill(~seen, 0.0)
    found = a @ b.masked_fill(odd.unsqueeze(-1), 0.0)
    adds = seen & odd.unsqueeze(-2)
    for k in adds.flatten(0, -2).any(0).nonzero().flatten().tolist():
        term = a[..., k : k + 1] * b[..., k : k + 1, :]
        found = found + term.masked_fill(~adds[..., k : k + 1], 0.0)
    return found


# Registered operators, for compiled graphs: these need not know which of the two ways was taken.
@torch.library.custom_op("selattn::seen_product", mutates_args=())
def _product(a: Tensor, b: Tensor, seen: Tensor) -> Tensor:
    found = a @ b
    return found if finite(found) else careful_product(a, b, seen)


@torch.library.custom_op("selattn::seen_logits", mutates_args=())
def _logits(x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    return (x @ y.mT).masked_fill(~seen, 0.0)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _product_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    a, b, seen = ctx.saved_tensors
    return seen_logits(gradient, b, seen), seen_product(a.mT, gradient, seen.mT), None


def _logits_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    x, y, seen = ctx.saved_tensors
    gradient = gradient.masked_fill(~seen, 0.0)
    return seen_product(gradient, y, seen), seen_product(gradient.mT, x, seen.mT), None


_product.register_fake(lambda a, b, seen: a @ b)
_logits.register_fake(lambda x, y, seen: x @ y.mT)
_product.register_autograd(_product_backward, setup_context=_save)
_logits.register_autograd(_logits_backward, setup_context=_save)
_product.register_vmap(lambda info, in_dims, *args: one_by_one(_product, info.batch_size, in_dims, args))


# Outside of them: with the derivative in forward mode, and for torch.func.
class _Product(torch.autograd.Function):
    generate_vmap_rule = True
    backward = staticmethod(_product_backward)

    @staticmethod
    def forward(a: Tensor, b: Tensor, seen: Tensor) -> Tensor:
        return _product(a, b, seen)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, da: Tensor | None, db: Tensor | None, _: None) -> Tensor:
        return _both(seen_product, ctx.saved_tensors, da, db)


class _Logits(torch.autograd.Function):
    generate_vmap_rule = True
    setup_context = _Product.setup_context
    backward = staticmethod(_logits_backward)

    @staticmethod
    def forward(x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
        return (x @ y.mT).masked_fill(~seen, 0.0)

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, dy: Tensor | None, _: None) -> Tensor:
        return _both(seen_logits, ctx.saved_tensors, dx, dy)


def _both(function: Any, inputs: Any, da: Tensor | None, db: Tensor | None) -> Tensor:
    """The derivative of what is linear in each of two inputs."""
    a, b, seen = inputs
    parts = [] if da is None else [function(da, b, seen)]
    return sum(parts if db is None else [*parts, function(a, db, seen)])


def seen_product(a: Tensor, b: Tensor, seen: Tensor) -> Tensor:
    """[..., n, m] and [..., m, d] to [..., n, d]: sum over the k that row i sees of a[i, k] b[k]."""
    if not torch.compiler.is_compiling():
        return _Product.apply(a, b, seen)
    return a @ b if in_transform() else _product(a, b, seen)  # torch.func in a compiled graph takes plain products only


def seen_logits(x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    """[..., n, d] and [..., m, d] to [..., n, m]: x y^T where seen, 0 elsewhere."""
    if not torch.compiler.is_compiling():
        return _Logits.apply(x, y, seen)
    return (x @ y.mT).masked_fill(~seen, 0.0) if in_transform() else _logits(x, y, seen)
