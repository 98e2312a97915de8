"""The GPU backend: kernels in Triton, made an operator. See docs/gpu.md.

Imported with the package, without triton itself: that is imported when a kernel runs.
"""

from __future__ import annotations

import importlib.util
import os

import torch

from selattn.ops.backends.triton.operator import attend
from selattn.ops.request import Request

__all__ = ["attend", "refusal", "unavailable"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST_HEAD = 128


def interpreted() -> bool:
    """Whether Triton runs its kernels in Python, on the CPU: TRITON_INTERPRET=1, set before triton is imported."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")


def unavailable() -> str | None:
    """Why this backend cannot run on this machine; None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install 'selattn[gpu]' (Linux)"
    if not (torch.cuda.is_available() or interpreted()):
        return "there is no CUDA device (TRITON_INTERPRET=1 runs the kernels in Python, for tests)"
    return None


def refusal(request: Request) -> str | None:
    """Why this backend cannot do what is asked; None if it can."""
    r, device = request, request.query.device.type
    selecting = r.query if r.selection_query is None else r.selection_query
    each_head = (r.until, r.bias, r.mask)
    reasons = {
        f"it runs on CUDA devices, not on {device}": device != "cuda" and not (device == "cpu" and interpreted()),
        f"it takes fp32, bf16 and fp16, not {r.query.dtype}": r.query.dtype not in DTYPES,
        f"it takes fp32, bf16 and fp16 for the separate form, not {selecting.dtype}": selecting.dtype not in DTYPES,
        f"its heads have at most {LARGEST_HEAD} features": LARGEST_HEAD
        < max(r.query.shape[3], r.value.shape[3], selecting.shape[3]),
        "it counts tokens in 32 bits": r.key.shape[2] >= 2**30,
        "it never holds the attention weights": r.wanted.weights,
        "it never holds F": r.wanted.f,
        "it has no dropout": r.rules.dropout_p > 0,
        "it has no sparse patterns": r.rules.pattern is not None,
        "it has no separate bilinear form where heads have masks or biases of their own": r.selection_query is not None
        and any(x is not None and x.shape[1] > 1 for x in each_head[1:]),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
