"""What most runs differ in: standard attention, selective attention, and the latter with the memory loss."""

from __future__ import annotations

from typing import Any

KINDS: dict[str, dict[str, Any]] = {
    "standard": {"attention": ["standard"]},
    "selective": {"attention": ["selective"]},
    "memory": {"attention": ["selective"], "memory_epsilon": 0.1},  # the paper's epsilon
}


def size(d: int) -> dict[str, Any]:
    """The paper's parameterisation: d_model = 64 d, and d layers of d heads."""
    return {"hidden_size": 64 * d, "num_hidden_layers": d, "num_attention_heads": d}
