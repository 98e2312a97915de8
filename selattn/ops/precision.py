"""In which type things are computed."""

from __future__ import annotations

import torch


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Logits, F, softmax and sums are fp32 for half-precision inputs."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
