"""Where the kernels run, and what they can hold."""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

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


def cannot_hold(query: Tensor, value: Tensor | None, selection_query: Tensor | None) -> str | None:
    """Why the kernels cannot take tokens on that device, of that type, with heads of that size; None if they can."""
    device = query.device.type
    selecting = query if selection_query is None else selection_query
    largest = max(x.shape[3] for x in (query, value, selecting) if x is not None)
    reasons = {
        f"it runs on CUDA devices, not on {device}": device != "cuda" and not (device == "cpu" and interpreted()),
        f"it takes fp32, bf16 and fp16, not {query.dtype}": query.dtype not in DTYPES,
        f"it takes fp32, bf16 and fp16 for the separate form, not {selecting.dtype}": selecting.dtype not in DTYPES,
        f"its heads have at most {LARGEST_HEAD} features": largest > LARGEST_HEAD,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
