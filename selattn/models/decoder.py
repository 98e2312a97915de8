"""The paper's decoder without its head: embeddings, positions, pre-norm layers, and a last norm.

Shapes: B rows, N tokens, H heads of size D, L layers.
"""

from __future__ import annotations

import itertools
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from selattn.cache import Budgets, Policy
from selattn.errors import SelattnError
from selattn.models.base import SelectivePreTrainedModel
from selattn.models.config import SelectiveConfig
from selattn.models.form import NewForm, SelectingForm
from selattn.models.forward import OPTIONS, Evicting, Pass, PassOptions, begin, evicted_rows
from selattn.models.inputs import Told, check_given, refuse_unknown
from selattn.models.outputs import SelectiveModelOutput, kept_fractions, kept_tokens
from selattn.models.rope import rotary_frequencies
from selattn.ops import Attention, Backend, Rules
from selattn.ops.request import Tokens

# -- the parts of a layer ---------------------------------------------------------------------------------------------


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * gain, in the gain's precision: under autocast x may be in a lower one."""

    def forward(self, x: Tensor) -> Tensor:
        """x [..., size] to the same."""
        assert self.weight is not None
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


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


def make_norm(config: SelectiveConfig) -> nn.Module:
    """RMSNorm (the paper) or LayerNorm (GPT-2) over d_model."""
    if config.norm == "rmsnorm":
        return RMSNorm(config.hidden_size, eps=config.norm_eps)
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.bias)


def make_mlp(config: SelectiveConfig) -> nn.Module:
    """SwiGLU (the paper) or GELU (GPT-2)."""
    return SwiGLU(config) if config.mlp == "swiglu" else Gelu(config)


def rotary_angles(config: SelectiveConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin, each [B, 1, N, head_dim], in fp32, for positions [B, N]."""
    rope, scale = config.rope_parameters, 1.0
    assert rope is not None
    if rope["rope_type"] == "default":
        pairs = torch.arange(0, config.head_dim, 2, device=positions.device, dtype=torch.float32)
        frequencies = rope["rope_theta"] ** (-pairs / config.head_dim)
    else:
        frequencies, scale = rotary_frequencies(config.head_dim, config.max_position_embeddings, rope, positions)
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


class AttentionBlock(nn.Module):
    """softmax(Q K^T / sqrt(d) - F) V between its input and output projections; F = 0 unless the kind is selective."""

    def __init__(self, config: SelectiveConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer, self.kind = config, layer, config.kinds[layer]
        self.head_dim = config.head_dim
        size, head, bias = config.hidden_size, config.head_dim, config.bias
        assert config.num_key_value_heads is not None
        self.q_proj = nn.Linear(size, config.num_attention_heads * head, bias=bias)
        self.k_proj = nn.Linear(size, config.num_key_value_heads * head, bias=bias)
        self.v_proj = nn.Linear(size, config.num_key_value_heads * head, bias=bias)
        self.o_proj = nn.Linear(config.num_attention_heads * head, size, bias=bias)
        self.q_norm = RMSNorm(head, eps=config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(head, eps=config.norm_eps) if config.qk_norm else nn.Identity()
        self.source = config.selection_source if self.kind.selective else "head"
        if self.source == "new":
            masks = len(config.selection.heads)
            self.selecting_form = SelectingForm(NewForm(), size, masks, head, config.max_position_embeddings)
        elif self.source == "separate":
            self.selection_q_proj = nn.Linear(size, head, bias=False)
            self.selection_k_proj = nn.Linear(size, head, bias=False)

    def forward(self, x: Tensor, now: Pass) -> tuple[Tensor, Attention]:
        """x [B, N, d_model] to the same, and the whole result of the attention."""
        rotary = now.rotary
        tokens = Tokens(
            rotate(self.q_norm(self._heads(self.q_proj(x))), rotary),
            rotate(self.k_norm(self._heads(self.k_proj(x))), rotary),
            self._heads(self.v_proj(x)),
        )
        if self.source == "new":
            query, key = self.selecting_form(x)
            tokens = tokens._replace(selection_query=query, selection_key=key)
        elif self.source == "separate":
            tokens = tokens._replace(
                selection_query=rotate(self._heads(self.selection_q_proj(x)), rotary),
                selection_key=rotate(self._heads(self.selection_k_proj(x)), rotary),
            )
        rules = now.rules._replace(
            selection=now.rules.selection if self.kind.selective else None,
            window=self.kind.window,
            pattern=self.kind.pattern,
            dropout_p=self.config.attention_dropout if self.training else 0.0,
        )
        slots = None if now.cache is None else now.cache.layers[self.layer]
        result = now.attend(self.layer, slots, tokens, rules)
        return self.o_proj(result.output.transpose(1, 2).flatten(2)), result

    def _heads(self, x: Tensor) -> Tensor:
        """[B, N, H * D] to [B, H, N, D]."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


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


# -- the decoder ------------------------------------------------------------------------------------------------------


class SelectiveModel(Evicting, SelectivePreTrainedModel):
    """Token ids to the hidden states that a head reads."""

    def __init__(self, config: SelectiveConfig, *, share_config: bool = False) -> None:
        super().__init__(config, share_config=share_config)
        config = self.config
        # No padding_idx: the pad token may well be a token with a meaning, such as <EOS>, which has to be trained.
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        learned = config.positions == "learned"
        self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size) if learned else None
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.layers = nn.ModuleList(SelectiveDecoderLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = make_norm(config)
        self._selects = config.selects  # the layers stay as they were made
        self._parsed: tuple[Any, Rules] | None = None  # settings of the config, and the rules that they mean
        self._rules()
        self.backend: Backend | None = None  # in force in place of the config's, which is a name; never saved
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        cu_seq_lens_q: Tensor | None = None,
        seq_idx: Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Unpack[PassOptions],
    ) -> SelectiveModelOutput | tuple[Any, ...]:
        """As in any decoder of transformers, with the options of `selattn.models.forward.PassOptions`.

        Args:
            attention_mask: [B, tokens so far]; with a cache also [B, N], which covers the new tokens only.
            cu_seq_lens_q: cumulative lengths of the documents of one packed row, as padding-free collators give them.
            seq_idx: [B, N], the number of the document that each token of a packed row belongs to.
        """
        refuse_unknown(kwargs, type(self).forward, OPTIONS)
        told = Told(attention_mask, position_ids, cu_seq_lens_q, seq_idx)
        check_given(input_ids, inputs_embeds, self.config.hidden_size, told)
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        now = begin(
            self,
            x,
            told,
            kwargs,
            rules=self._rules(),
            backend=self.backend or self.config.backend,
            cache=past_key_values,
            use_cache=use_cache,
            attentions=self.config.output_attentions if output_attentions is None else output_attentions,
        )
        x, now.rotary = self._positioned(x, now.places.positions, check=position_ids is not None or self._long(now))
        want_hidden = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        hidden: list[Any] = []
        results = []
        # Fewer layers, where transformers drafts with the first layers alone.
        for layer in itertools.islice(self.layers, self.config.num_hidden_layers):
            if want_hidden:
                hidden.append(x)
            x, *parts = layer(x, now)
            results.append(parts)
        x = self.norm(x)
        kept, f, weights, evicted_at = zip(*results, strict=True)
        result = SelectiveModelOutput(
            last_hidden_state=x,
            past_key_values=now.cache,
            hidden_states=(*hidden, x) if want_hidden else None,
            attentions=now.over_tokens(weights) if now.wanted.weights else None,
            kept=kept_fractions(kept, x, now.sequences) if now.wanted.memory else None,
            f=now.over_tokens(f) if now.wanted.f else None,
            evicted_at=evicted_rows(evicted_at, x) if now.evictions else None,
        )
        use_dict = self.config.return_dict if return_dict is None else return_dict
        return result if use_dict else result.to_tuple()

    def enter(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> tuple[Tensor, Pass]:
        """The input of the first layer, [B, N, d_model], and what all layers share: whole sequences, no cache.

        To run only some of the layers: `x, *_ = layer(x, context)` for each of `layers`, then `norm`, is `forward`
        with the config's budgets and policy, or others put into the context.
        """
        told, backend = Told(attention_mask, position_ids), self.backend or self.config.backend
        now = begin(self, input_ids, told, {}, rules=self._rules(), backend=backend, use_cache=False)
        x, now.rotary = self._positioned(self.embed_tokens(input_ids), now.places.positions, check=True)
        return x, now

    def _rules(self) -> Rules:
        """The config's rules of all layers that select; made again only after the config has changed."""
        config, head = self.config, self.config.selection_head
        settings = (
            head if isinstance(head, int) else tuple(head),
            config.selection_relu,
            config.selection_protect_first,
            config.selection_protect_self,
            config.selection_shift,
            config.selection_strength,
            config.memory_tau,
        )
        if self._parsed is None or self._parsed[0] != settings:
            self._parsed = settings, Rules(config.selection, config.selection_strength, tau=config.memory_tau)
        return self._parsed[1]

    def _positioned(self, x: Tensor, positions: Tensor, check: bool) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Embeddings that include learned positions, or embeddings and the rotary angles."""
        if self.embed_positions is None:
            return self.dropout(x), rotary_angles(self.config, positions)
        if check:
            self._check_positions(positions)
        return self.dropout(x + self.embed_positions(positions).to(x.device)), None

    def own_eviction(self) -> tuple[Budgets | None, str | Policy]:
        """Budgets and policy of the config."""
        return self.config.budgets, self.config.cache_policy

    @property
    def selects(self) -> bool:
        """Whether any layer selects."""
        return self._selects

    def layer_counts(self) -> tuple[int, int]:
        """The layers that run, and all layers."""
        return self.config.num_hidden_layers, len(self.layers)

    def wants_cache(self) -> bool:
        """Whether a pass makes a cache unless it is told."""
        return bool(self.config.use_cache)

    def recomputes(self) -> bool:
        """Whether the layers run twice, by gradient checkpointing."""
        return self.training and any(layer.gradient_checkpointing for layer in self.layers)

    def _long(self, now: Pass) -> bool:
        """Whether positions may lie past the context size, as far as that is known without looking at them."""
        if now.cache is None:
            return now.places.positions.shape[-1] > self.config.max_position_embeddings
        if torch.compiler.is_compiling():
            return True
        return now.cache.get_seq_length() + now.places.positions.shape[-1] > self.config.max_position_embeddings

    def _check_positions(self, positions: Tensor) -> None:
        """No learned position exists past the context size; packed rows may be longer, their positions restart."""
        limit = self.config.max_position_embeddings
        if torch.compiler.is_compiling():
            fits = (positions >= 0) & (positions < limit)
            torch._assert_async(fits.all(), f"there are {limit} learned positions, and one outside them was asked for")
            return
        lowest, highest = (int(edge) for edge in positions.aminmax())
        if highest >= limit:
            raise SelattnError(
                f"a sequence of {highest + 1} tokens is longer than the {limit} learned positions: "
                "cut it, or use a model with rotary positions"
            )
        if lowest < 0:
            raise SelattnError(f"position_ids must be at least 0, not {lowest}")
