"""Our decoder for vLLM: the same sizes and weights as `selattn.SelectiveForCausalLM`, made of vLLM's parts.

Shapes: T tokens of a step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as nnf
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix

from selattn.models.config import SelectiveConfig
from selattn.models.form import NewForm, SelectingForm
from selattn.vllm.backend import Stateful
from selattn.vllm.checks import plans_of
from selattn.vllm.layer import SelectiveAttention
from selattn.vllm.plan import LayerPlan


def _norm(config: SelectiveConfig) -> nn.Module:
    if config.norm == "rmsnorm":
        return RMSNorm(config.hidden_size, eps=config.norm_eps)
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.bias)


class Mlp(nn.Module):
    """SwiGLU or GELU."""

    def __init__(self, config: SelectiveConfig, prefix: str) -> None:
        super().__init__()
        size, inner, bias = config.hidden_size, config.intermediate_size, config.bias
        assert inner is not None
        self.gated = config.mlp == "swiglu"
        if self.gated:
            self.gate_up_proj = MergedColumnParallelLinear(
                size, [inner] * 2, bias=bias, prefix=f"{prefix}.gate_up_proj"
            )
            self.act = SiluAndMul()
        else:
            self.up_proj = ColumnParallelLinear(size, inner, bias=bias, prefix=f"{prefix}.up_proj")
        self.down_proj = RowParallelLinear(inner, size, bias=bias, prefix=f"{prefix}.down_proj")

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            x = self.act(self.gate_up_proj(x)[0])
        else:
            x = nnf.gelu(self.up_proj(x)[0], approximate="tanh")
        return self.down_proj(x)[0]


class AttentionBlock(nn.Module):
    """Projections, QK norm, positions and our layer."""

    def __init__(self, config: SelectiveConfig, plan: LayerPlan, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        size, head, heads, groups = config.hidden_size, config.head_dim, plan.heads, plan.groups
        self.head, self.sizes = head, [heads * head, groups * head, groups * head]
        self.qkv_proj = QKVParallelLinear(size, head, heads, groups, bias=config.bias, prefix=f"{prefix}.qkv_proj")
        self.o_proj = RowParallelLinear(heads * head, size, bias=config.bias, prefix=f"{prefix}.o_proj")
        self.q_norm = RMSNorm(head, eps=config.norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(head, eps=config.norm_eps) if config.qk_norm else None
        self.rotary = None
        if config.positions == "rotary":
            longest = config.max_position_embeddings
            if config.rope_parameters is None or config.rope_parameters["rope_type"] == "default":
                longest = max(longest, vllm_config.model_config.max_model_len)  # unscaled, they go on as they are
            self.rotary = get_rope(head, max_position=longest, rope_parameters=config.rope_parameters)
        self.source = None if plan.form is None else config.selection_source
        if plan.form is not None and self.source == "new":
            self.selecting_form = SelectingForm(NewForm(), size, plan.form[0], head, config.max_position_embeddings)
        elif self.source == "separate":
            self.selection_q_proj = nn.Linear(size, head, bias=False)
            self.selection_k_proj = nn.Linear(size, head, bias=False)
        self.attn = SelectiveAttention(plan, f"{prefix}.attn", vllm_config, config.backend)

    def forward(self, positions: Tensor, x: Tensor) -> Tensor:
        query, key, value = self.qkv_proj(x)[0].split(self.sizes, -1)
        if self.q_norm is not None and self.k_norm is not None:
            query = self.q_norm(query.unflatten(-1, (-1, self.head)).contiguous()).flatten(1)
            key = self.k_norm(key.unflatten(-1, (-1, self.head)).contiguous()).flatten(1)
        query, key = self._rotated(positions, query, key)
        form: tuple[Tensor, ...] = ()
        if self.source == "new":
            form = tuple(part[0].transpose(0, 1).flatten(1) for part in self.selecting_form(x[None]))
        elif self.source == "separate":
            form = self._rotated(positions, self.selection_q_proj(x), self.selection_k_proj(x))
        return self.o_proj(self.attn(query, key, value, *form))[0]

    def _rotated(self, positions: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        if self.rotary is None:
            return query, key
        rotated = self.rotary(positions, query.contiguous(), key.contiguous())
        return rotated[0], rotated[1]


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: SelectiveConfig, plan: LayerPlan, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        self.attention_norm = _norm(config)
        self.attention = AttentionBlock(config, plan, vllm_config, f"{prefix}.attention")
        self.mlp_norm = _norm(config)
        self.mlp = Mlp(config, f"{prefix}.mlp")

    def forward(self, positions: Tensor, x: Tensor) -> Tensor:
        x = x + self.attention(positions, self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": 0, "inputs_embeds": 0})
class SelectiveModel(nn.Module):
    """Token ids to the hidden states that the head reads."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config: SelectiveConfig = vllm_config.model_config.hf_config
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.hidden_size)
        self.embed_positions = None
        if config.positions == "learned":
            self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = nn.ModuleList(
            DecoderLayer(config, plan, vllm_config, f"{prefix}.layers.{i}")
            for i, plan in enumerate(plans_of(vllm_config))
        )
        self.norm = _norm(config)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """[T, d_model]."""
        return self.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """[T, d_model]."""
        if inputs_embeds is None:
            assert input_ids is not None
            inputs_embeds = self.embed_tokens(input_ids)
        x = inputs_embeds
        if self.embed_positions is not None:
            x = x + self.embed_positions(positions)
        for layer in self.layers:
            x = layer(positions, x)
        return self.norm(x)


class SelectiveForCausalLM(Stateful, nn.Module):
    """The decoder with its head."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.config: SelectiveConfig = vllm_config.model_config.hf_config
        self.model = SelectiveModel(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.lm_head = ParallelLMHead(
            self.config.vocab_size, self.config.hidden_size, prefix=maybe_prefix(prefix, "lm_head")
        )
        if self.config.tie_word_embeddings:
            self.lm_head = self.lm_head.tie_weights(self.model.embed_tokens)
        self.logits_processor = LogitsProcessor(self.config.vocab_size)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """[T, d_model]."""
        return self.model.embed_input_ids(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """The hidden states [T, d_model]."""
        return self.model(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """[tokens, V]."""
        return self.logits_processor(self.lm_head, hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """As they are saved; queries, keys and values become one matrix, and so do the two of SwiGLU."""
        stacked: dict[str, Any] = {f".attention.{x}_proj": (".attention.qkv_proj", x) for x in "qkv"}
        if self.config.mlp == "swiglu":
            stacked |= {".mlp.gate_proj": (".mlp.gate_up_proj", 0), ".mlp.up_proj": (".mlp.gate_up_proj", 1)}
        return AutoWeightsLoader(self).load_weights(weights, mapper=WeightsMapper(orig_to_new_stacked=stacked))
