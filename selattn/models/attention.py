"""The attention block of a layer: projections, QK norm, positions, and attention of the layer's kind."""

from __future__ import annotations

from torch import Tensor, nn

from selattn.models.config import SelectiveConfig
from selattn.models.form import NewForm, SelectingForm
from selattn.models.parts import RMSNorm, rotate
from selattn.models.passes import Pass
from selattn.ops import Attention
from selattn.ops.request import Tokens
from selattn.ops.rules import Rules


class AttentionBlock(nn.Module):
    """softmax(Q K^T / sqrt(d) - F) V between its input and output projections; F = 0 unless the kind is selective."""

    def __init__(self, config: SelectiveConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        self.kind = config.kinds[layer]
        self.head_dim = config.head_dim
        size, head, bias = config.hidden_size, config.head_dim, config.bias
        assert config.num_key_value_heads is not None
        self.q_proj = nn.Linear(size, config.num_attention_heads * head, bias=bias)
        self.k_proj = nn.Linear(size, config.num_key_value_heads * head, bias=bias)
        self.v_proj = nn.Linear(size, config.num_key_value_heads * head, bias=bias)
        self.o_proj = nn.Linear(config.num_attention_heads * head, size, bias=bias)
        self.q_norm = RMSNorm(head, eps=config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(head, eps=config.norm_eps) if config.qk_norm else nn.Identity()
        source = config.selection_source if self.kind.selective else "head"
        self.separate, self.new = source == "separate", source == "new"
        if self.new:
            masks = len(config.selection.heads)
            self.selecting_form = SelectingForm(NewForm(), size, masks, head, config.max_position_embeddings)
        if self.separate:
            self.selection_q_proj = nn.Linear(size, head, bias=False)
            self.selection_k_proj = nn.Linear(size, head, bias=False)

    def forward(self, x: Tensor, now: Pass) -> tuple[Tensor, Attention]:
        """x [B, N, d_model] to the same, and all that attention gave."""
        slots = None if now.cache is None else now.cache.layers[self.layer]
        result = now.attend(self.layer, slots, self._tokens(x, now.rotary), self._rules(now.rules))
        return self.o_proj(result.output.transpose(1, 2).flatten(2)), result

    def _tokens(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tokens:
        """What the tokens ask for and what they offer."""
        tokens = Tokens(
            rotate(self.q_norm(self._heads(self.q_proj(x))), rotary),
            rotate(self.k_norm(self._heads(self.k_proj(x))), rotary),
            self._heads(self.v_proj(x)),
        )
        if self.new:
            query, key = self.selecting_form(x)
            return tokens._replace(selection_query=query, selection_key=key)
        if not self.separate:
            return tokens
        return tokens._replace(
            selection_query=rotate(self._heads(self.selection_q_proj(x)), rotary),
            selection_key=rotate(self._heads(self.selection_k_proj(x)), rotary),
        )

    def _heads(self, x: Tensor) -> Tensor:
        """[B, N, H * D] to [B, H, N, D]."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _rules(self, shared: Rules) -> Rules:
        """The rules of all layers, as far as the layer's kind follows them, and its own."""
        return shared._replace(
            selection=shared.selection if self.kind.selective else None,
            window=self.kind.window,
            pattern=self.kind.pattern,
            dropout_p=self.config.attention_dropout if self.training else 0.0,
        )
