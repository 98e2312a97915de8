"""The small parts of a decoder layer, chosen by name: norms, MLPs, positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from selattn.models.config import SelectiveConfig
from selattn.models.rope import rotary_frequencies


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * gain, in the gain's precision: under autocast x may be in a lower one."""

    def forward(self, x: Tensor) -> Tensor:
        """x [..., size] to the same."""
        assert self.weight is not None
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


def make_norm(config: SelectiveConfig) -> nn.Module:
    """RMSNorm (the paper) or LayerNorm (GPT-2) over d_model."""
    if config.norm == "rmsnorm":
        return RMSNorm(config.hidden_size, eps=config.norm_eps)
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.bias)


def make_mlp(config: SelectiveConfig) -> nn.Module:
    """SwiGLU (the paper) or GELU (GPT-2)."""
    return SwiGLU(config) if config.mlp == "swiglu" else Gelu(config)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), Shazeer (2020)."""

    def __init__(self, config: SelectiveConfig) -> None:
        super().__init__()
        size, inner, bias = config.hidden_size, config.intermediate_size, config.bias
        assert inner is not None
        self.gate_proj = nn.Linear(size, inner, bias=bias)
        self.up_proj = nn.Linear(size, inner, bias=bias)
        self.down_proj = nn.Linear(inner, size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(nnf.silu(self.gate_proj(x)) * self.up_proj(x))


class Gelu(nn.Module):
    """down(gelu(up(x))), with GPT-2's tanh approximation."""

    def __init__(self, config: SelectiveConfig) -> None:
        super().__init__()
        assert config.intermediate_size is not None
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(nnf.gelu(self.up_proj(x), approximate="tanh"))


def rotary_angles(config: SelectiveConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin, each [B, 1, N, head_dim], in fp32, for positions [B, N]."""
    assert config.rope_parameters is not None
    frequencies, scale = rotary_frequencies(
        config.head_dim, config.max_position_embeddings, config.rope_parameters, positions
    )
    angles = positions[:, None, :, None].float() * frequencies
    angles = torch.cat([angles, angles], -1)
    return angles.cos() * scale, angles.sin() * scale


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
    """Rotary positions (Su et al., 2021), the two halves of a head being the two coordinates; x is [B, H, N, D]."""
    if rotary is None:
        return x
    cos, sin = rotary
    first, second = x.chunk(2, -1)
    return (x * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)
