"""The GPU backend: kernels in Triton, made operators. See docs/gpu.md.

Imported with the package, without triton itself: that is imported when a kernel runs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from selattn.ops.backends.base import Backend
from selattn.ops.backends.triton import cache, configs, selfcheck
from selattn.ops.backends.triton.attention import OPERATOR
from selattn.ops.eviction import Order, OrderRequest, StepRequest
from selattn.ops.request import Attention, Request

__all__ = ["Triton"]


class Triton(Backend):
    """Kernels for CUDA devices; with TRITON_INTERPRET=1 they run in Python, on the CPU."""

    name = "triton"
    plain = False

    def unavailable(self) -> str | None:
        return configs.unavailable()

    def trusted(self, query: Tensor) -> bool:
        """They are on a CUDA device, and the kernels have passed their self-check there."""
        return query.device.type == "cuda" and _passed(str(query.device), str(query.dtype), query.shape[-1])

    def refusal(self, request: Request) -> str | None:
        r = request
        reasons = {
            "it counts tokens in 32 bits": r.key.shape[2] >= 2**30,
            "it never holds the attention weights": r.wanted.weights,
            "it never holds F": r.wanted.f,
            "it has no dropout": r.rules.dropout_p > 0,
            "it has no sparse patterns": r.rules.pattern is not None,
        }
        reason = configs.cannot_hold(r.query, r.value, r.selection_query)
        return reason or next((reason for reason, holds in reasons.items() if holds), None)

    def attend(self, request: Request) -> Attention:
        return OPERATOR.attend(request.without_padding())

    def order_refusal(self, request: OrderRequest) -> str | None:
        return cache.order_refusal(request)

    def order(self, request: OrderRequest) -> tuple[Order, Tensor | None]:
        return cache.order(request)

    def step_refusal(self, request: StepRequest) -> str | None:
        return cache.step_refusal(request)

    def step(self, request: StepRequest) -> Tensor:
        return cache.step(request)


def _passed(device: str, dtype: str, features: int) -> bool:
    """A graph that is compiled has the answer in it: the question is asked, and the check made, while it is traced."""
    if reason := configs.unavailable():
        selfcheck.warn_once(f"'auto' takes the slower 'chunked' on {device}: {reason}")
        return False
    place = selfcheck.place_of(torch.device(device), getattr(torch, dtype.removeprefix("torch.")), features)
    return selfcheck.failure(place, Triton()) is None


# What `torch.compiler.assume_constant_result` sets; to call it would import the compiler with the package.
_passed._dynamo_marked_constant = True  # type: ignore[attr-defined]
