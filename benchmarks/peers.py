"""x-transformers' attention layer, and ours with the same weights."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor, nn
from x_transformers.x_transformers import Attention as PeerAttention

from selattn import selective_attention

Layer: TypeAlias = nn.Module


class OurLayer(nn.Module):
    """Projections and selective attention, as the peer's layer has them."""

    def __init__(self, peer: PeerAttention, heads: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = peer.to_q, peer.to_k, peer.to_v, peer.to_out
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, heads * dim]."""
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        return self.o(selective_attention(q, k, v).transpose(1, 2).flatten(2))


def layers(heads: int, dim: int, seed: int) -> dict[str, Layer]:
    """Both layers, with the same weights."""
    torch.manual_seed(seed)
    peer = PeerAttention(dim=heads * dim, dim_head=dim, heads=heads, causal=True, selective=True)
    return {"selattn": OurLayer(peer, heads), "x-transformers": _Output(peer)}


class _Output(nn.Module):
    """The peer's layer gives more than its output."""

    def __init__(self, peer: PeerAttention) -> None:
        super().__init__()
        self.peer = peer

    def forward(self, x: Tensor) -> Tensor:
        found = self.peer(x)
        return found[0] if isinstance(found, tuple) else found
