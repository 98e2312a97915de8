"""The attention block of a layer: projections, QK norm, positions, and attention of the layer's kind."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from selattn.cache import Policy, SelectiveCache, attend, defer, evictions, in_force
from selattn.models.config import SelectiveConfig
from selattn.models.form import NewForm, SelectingForm
from selattn.models.parts import RMSNorm, rotate
from selattn.ops import Attention, AuxRequest, Backend, Sequences
from selattn.ops.attention import attend_whole
from selattn.ops.request import Tokens
from selattn.ops.rules import Rules


class Context(NamedTuple):
    """What all layers of one forward pass share."""

    sequences: Sequences | None
    rotary: tuple[Tensor, Tensor] | None
    cache: SelectiveCache | None
    whole: bool  # the sequences begin here: attention needs no cache, though it may fill one
    real: Tensor | None  # [B, N] bool, with a cache: which of the new tokens are no padding; None: all
    budgets: tuple[int | None, ...] | None  # K_l of each layer, without a cache, which has its own; None is no limit
    policy: Policy
    rules: Rules  # what the config says of all layers that select
    wanted: AuxRequest  # beside the output, of the layers that have it
    backend: str | Backend


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

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Attention]:
        """x [B, N, d_model] to the same, and all that attention gave."""
        tokens, rules, backend = self._tokens(x, context), self._rules(context), context.backend
        layer = None if context.cache is None else context.cache.layers[self.layer]
        if layer is not None and not context.whole:
            result = attend(layer, tokens, rules, context.wanted, backend)
        else:
            evicted_at = self._evictions(tokens, context, rules)
            result = attend_whole(tokens, context.sequences, rules, context.wanted, backend, evicted_at)
            if layer is not None:
                defer(layer, tokens, rules, backend)
        return self.o_proj(result.output.transpose(1, 2).flatten(2)), result

    def _evictions(self, tokens: Tokens, context: Context, rules: Rules) -> Tensor | None:
        """Who leaves when from whole sequences, by the budget of the cache or, without one, of this pass."""
        if context.cache is not None:
            budget = context.cache.layers[self.layer].budget
        else:
            budget = None if context.budgets is None else context.budgets[self.layer]
        if not in_force(budget, context.policy):
            return None
        return evictions(tokens, context.sequences, rules, budget, context.policy, context.backend)

    def _tokens(self, x: Tensor, context: Context) -> Tokens:
        """What the tokens ask for and what they offer."""
        tokens = Tokens(
            rotate(self.q_norm(self._heads(self.q_proj(x))), context.rotary),
            rotate(self.k_norm(self._heads(self.k_proj(x))), context.rotary),
            self._heads(self.v_proj(x)),
            context.real,
        )
        if self.new:
            query, key = self.selecting_form(x)
            return tokens._replace(selection_query=query, selection_key=key)
        if not self.separate:
            return tokens
        return tokens._replace(
            selection_query=rotate(self._heads(self.selection_q_proj(x)), context.rotary),
            selection_key=rotate(self._heads(self.selection_k_proj(x)), context.rotary),
        )

    def _heads(self, x: Tensor) -> Tensor:
        """[B, N, H * D] to [B, H, N, D]."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _rules(self, context: Context) -> Rules:
        """What the layer's kind and the config say."""
        return Rules(
            selection=context.rules.selection if self.kind.selective else None,
            strength=context.rules.strength,
            window=self.kind.window,
            pattern=self.kind.pattern,
            dropout_p=self.config.attention_dropout if self.training else 0.0,
            tau=context.rules.tau,
        )
