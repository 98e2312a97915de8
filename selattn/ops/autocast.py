"""torch.autocast around attention: inputs come in its dtype, and what backends do in fp32 stays in fp32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def cast(*tensors: Any) -> tuple[Any, ...]:
    """Under autocast: the inputs in its dtype, as `scaled_dot_product_attention` takes them; fp64 is left alone."""
    device = tensors[0].device.type
    if not is_on(device):
        return tensors
    low = torch.get_autocast_dtype(device)
    half = (torch.float32, torch.bfloat16, torch.float16)
    return tuple(x.to(low) if x is not None and x.dtype in half else x for x in tensors)


def off(device: str) -> AbstractContextManager[Any]:
    """Without autocast, which has been obeyed by now: F above all stays in fp32."""
    return torch.autocast(device, enabled=False) if is_on(device) else nullcontext()


def is_on(device: str) -> bool:
    """Whether autocast is on for a device; "meta" has none, and asking is an error."""
    return device != "meta" and torch.is_autocast_enabled(device)
