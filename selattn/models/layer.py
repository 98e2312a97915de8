"""One layer of the decoder: attention and MLP, each behind its norm and beside the residual stream."""

from __future__ import annotations

from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from selattn.models.attention import AttentionBlock
from selattn.models.config import SelectiveConfig
from selattn.models.memory_loss import kept_tokens
from selattn.models.parts import make_mlp, make_norm
from selattn.models.passes import Pass


class SelectiveDecoderLayer(GradientCheckpointingLayer):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: SelectiveConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = make_norm(config)
        self.attention = AttentionBlock(config, layer)
        self.mlp_norm = make_norm(config)
        self.mlp = make_mlp(config)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(
        self, x: Tensor, now: Pass
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """The new x, the tokens kept (sum over sequences of max_i M_i), F, the weights, and the rows of evictions."""
        mixed, result = self.attention(self.attention_norm(x), now)
        x = x + self.dropout(mixed)
        x = x + self.dropout(self.mlp(self.mlp_norm(x)))
        aux = result.aux
        kept = None if aux.memory is None else kept_tokens(aux.memory, now.sequences)
        return x, kept, aux.f, aux.weights, result.evicted_at
