"""The attention block of a layer: projections, QK norm, positions, the cache, and the operator for the layer's kind."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from selattn.cache import SelectiveCache
from selattn.models.config import SelectiveConfig
from selattn.models.parts import rotate
from selattn.ops import Attention, Sequences, causal_attention, selective_attention


class Context(NamedTuple):
    """What all layers of one forward pass share."""

    sequences: Sequences | None
    rotary: tuple[Tensor, Tensor] | None
    cache: SelectiveCache | None
    strength: float | Tensor
    want_memory: bool
    want_selection: bool
    want_weights: bool


class AttentionBlock(nn.Module):
    """softmax(Q K^T / sqrt(d) - F) V between its input and output projections; F = 0 unless the kind is selective."""

    def __init__(self, config: SelectiveConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        self.kind = config.kinds[layer]
        size, head, bias = config.hidden_size, config.head_dim, config.bias
        assert config.num_key_value_heads is not None
        self.q_proj = nn.Linear(size, config.num_attention_heads * head, bias=bias)
        self.k_proj = nn.Linear(size, config.num_key_value_heads * head, bias=bias)
        self.v_proj = nn.Linear(size, config.num_key_value_heads * head, bias=bias)
        self.o_proj = nn.Linear(config.num_attention_heads * head, size, bias=bias)
        self.q_norm = nn.RMSNorm(head, eps=config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(head, eps=config.norm_eps) if config.qk_norm else nn.Identity()
        self.separate = self.kind.selective and config.selection_source == "separate"
        if self.separate:
            self.selection_q_proj = nn.Linear(size, head, bias=False)
            self.selection_k_proj = nn.Linear(size, head, bias=False)

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Attention]:
        """x [B, N, d_model] to the same, and all that attention gave."""
        query = rotate(self.q_norm(self._heads(self.q_proj(x))), context.rotary)
        key = rotate(self.k_norm(self._heads(self.k_proj(x))), context.rotary)
        value = self._heads(self.v_proj(x))
        if context.cache is not None:
            key, value = context.cache.update(key, value, self.layer)
        result = (
            self._select(x, query, key, value, context)
            if self.kind.selective
            else self._plain(query, key, value, context)
        )
        return self.o_proj(result.output.transpose(1, 2).flatten(2)), result

    def _heads(self, x: Tensor) -> Tensor:
        """[B, N, H * D] to [B, H, N, D]."""
        return x.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)

    def _select(self, x: Tensor, query: Tensor, key: Tensor, value: Tensor, context: Context) -> Attention:
        selection_query, selection_key = None, None
        if self.separate:
            selection_query = rotate(self._heads(self.selection_q_proj(x)), context.rotary)
            selection_key = rotate(self._heads(self.selection_k_proj(x)), context.rotary)
        state = None
        if context.cache is not None:
            state, selection_key = context.cache.selected(self.layer, selection_key)
        result: Attention = selective_attention(
            query,
            key,
            value,
            dropout_p=self.config.attention_dropout if self.training else 0.0,
            enable_gqa=True,
            selection=self.config.selection,
            selection_query=selection_query,
            selection_key=selection_key,
            strength=context.strength,
            sequences=context.sequences,
            window=self.kind.window,
            state=state,
            tau=self.config.memory_tau,
            return_f=context.want_selection,
            return_memory=context.want_memory,
            return_state=True,
            return_weights=context.want_weights,
            backend=self.config.backend,
        )
        if context.cache is not None:
            context.cache.remember(self.layer, result.state)
        return result

    def _plain(self, query: Tensor, key: Tensor, value: Tensor, context: Context) -> Attention:
        result = causal_attention(
            query,
            key,
            value,
            dropout_p=self.config.attention_dropout if self.training else 0.0,
            enable_gqa=True,
            sequences=context.sequences,
            window=self.kind.window,
            pattern=self.kind.pattern,
            return_weights=context.want_weights,
            backend=self.config.backend,
        )
        return result if context.want_weights else Attention(result)
