"""The paper's decoder as a Hugging Face model: pre-norm layers of attention and MLP, and the memory loss inside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from selattn.cache import SelectiveCache
from selattn.errors import SelattnError
from selattn.models.attention import AttentionBlock, Context
from selattn.models.config import SelectiveConfig
from selattn.models.inputs import sequences_of
from selattn.models.memory_loss import kept_tokens, memory_term, real_tokens, share_of_labels
from selattn.models.outputs import SelectiveModelOutput, SelectiveOutput
from selattn.models.parts import make_mlp, make_norm, rotary_angles


class SelectiveDecoderLayer(GradientCheckpointingLayer):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: SelectiveConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = make_norm(config)
        self.attention = AttentionBlock(config, layer)
        self.mlp_norm = make_norm(config)
        self.mlp = make_mlp(config)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """The new x, the tokens kept (sum over sequences of max_i M_i), F and the weights, as far as wanted."""
        mixed, result = self.attention(self.attention_norm(x), context)
        x = x + self.dropout(mixed)
        x = x + self.dropout(self.mlp(self.mlp_norm(x)))
        kept = None if result.memory is None else kept_tokens(result.memory, context.sequences)
        return x, kept, result.f, result.weights


class SelectivePreTrainedModel(PreTrainedModel):
    """What transformers must know to load, save, place and checkpoint the model."""

    config: SelectiveConfig
    config_class = SelectiveConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["SelectiveDecoderLayer"]  # noqa: RUF012 (transformers' own convention)
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_sdpa = True

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """As in transformers, but reentrant checkpointing is refused: it would silently cut F off from its gradient."""
        if (gradient_checkpointing_kwargs or {}).get("use_reentrant"):
            raise SelattnError(
                "reentrant gradient checkpointing loses the gradient of F: "
                "pass gradient_checkpointing_kwargs={'use_reentrant': False}"
            )
        super().gradient_checkpointing_enable(
            {"use_reentrant": False, **(gradient_checkpointing_kwargs or {})}, **kwargs
        )


class SelectiveModel(SelectivePreTrainedModel):
    """Embeddings, positions and layers, up to the last norm."""

    def __init__(self, config: SelectiveConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        learned = config.positions == "learned"
        self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size) if learned else None
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.layers = nn.ModuleList(SelectiveDecoderLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = make_norm(config)
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
        output_selection: bool = False,
        output_kept: bool = False,
        selection_strength: float | Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        **kwargs: Any,
    ) -> SelectiveModelOutput:
        """As in any decoder of transformers, with these additions.

        Args:
            output_selection: return F of each layer (N x N each).
            output_kept: return the kept fraction of each layer.
            selection_strength: replaces the config's, for a ramp during training.
            cu_seq_lens_q: cumulative lengths of the documents of one packed row, as padding-free collators give them.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise SelattnError("give exactly one of input_ids and inputs_embeds")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        cache = self._cache(past_key_values, self.config.use_cache if use_cache is None else use_cache)
        past = 0 if cache is None else cache.get_seq_length()
        sequences, positions = sequences_of(x.shape[:2], past, attention_mask, position_ids, cu_seq_lens_q, x.device)

        rotary = None
        if self.embed_positions is None:
            rotary = rotary_angles(self.config, positions)
        else:
            self._check_positions(positions, past + x.shape[1])
            x = x + self.embed_positions(positions)
        x = self.dropout(x)

        context = Context(
            sequences,
            rotary,
            cache,
            self.config.selection_strength if selection_strength is None else selection_strength,
            want_memory=output_kept,
            want_selection=output_selection,
            want_weights=bool(self.config.output_attentions if output_attentions is None else output_attentions),
        )
        hidden, kept, selection, weights = [x], [], [], []
        for layer in self.layers:
            x, *found = layer(x, context)
            hidden.append(x)
            for into, part in zip((kept, selection, weights), found, strict=True):
                into.append(part)
        x = self.norm(x)
        hidden[-1] = x

        want_hidden = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        return SelectiveModelOutput(
            last_hidden_state=x,
            past_key_values=cache,
            hidden_states=tuple(hidden) if want_hidden else None,
            attentions=tuple(weights) if context.want_weights else None,
            kept=self._kept_fractions(kept, x, sequences) if output_kept else None,
            selection=tuple(selection) if output_selection else None,
        )

    def _kept_fractions(self, kept: list[Tensor | None], x: Tensor, sequences: Any) -> Tensor:
        """[L] kept fractions, NaN for layers that do not select."""
        n = real_tokens(x.shape[:2], sequences, x)
        return torch.stack([x.new_full((), torch.nan, dtype=n.dtype) if k is None else k / n for k in kept])

    def _cache(self, given: Cache | None, use_cache: bool) -> SelectiveCache | None:
        """The cache of this pass; any but our own would lose F between steps."""
        if given is None:
            return SelectiveCache() if use_cache and not self.training else None
        if not isinstance(given, SelectiveCache):
            raise SelattnError(
                f"a {type(given).__name__} does not keep F, and the text would be silently wrong: "
                "pass a selattn.cache.SelectiveCache, or leave past_key_values out"
            )
        return given

    def _check_positions(self, positions: Tensor, length: int) -> None:
        """No learned position exists past the context size; packed rows may be longer, their positions restart."""
        limit = self.config.max_position_embeddings
        if torch.compiler.is_compiling():
            torch._assert_async((positions < limit).all(), "a sequence is longer than the learned positions")
        elif length > limit and int(positions.max()) >= limit:
            raise SelattnError(
                f"a sequence of {int(positions.max()) + 1} tokens is longer than the {limit} learned positions: "
                "cut it, or use a model with rotary positions"
            )


class SelectiveForCausalLM(SelectivePreTrainedModel, GenerationMixin):
    """The decoder with its language-model head. Any trainer that passes labels trains it, memory term included."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: SelectiveConfig) -> None:
        super().__init__(config)
        self.model = SelectiveModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> SelectiveOutput:
        """As in any causal language model of transformers; further arguments are those of `SelectiveModel.forward`.

        With `labels` the loss is the cross-entropy of the next token plus the memory term, both weighted by
        `num_items_in_batch` when a trainer that accumulates gradients gives it.
        """
        selects = any(kind.selective for kind in self.config.kinds)
        want_kept = kwargs.pop("output_kept", labels is not None and selects)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            output_kept=want_kept,
            **kwargs,
        )
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, keep, :])
        loss, lm_loss, memory_loss = None, None, None
        if labels is not None:
            loss = lm_loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size, num_items_in_batch=num_items_in_batch
            )
            memory_loss = torch.zeros_like(loss)
            if outputs.kept is not None:
                memory_loss = memory_term(outputs.kept, self.config.memory_epsilon)
                memory_loss = memory_loss * share_of_labels(labels, num_items_in_batch)
                if self.config.memory_epsilon:
                    loss = lm_loss + memory_loss.to(lm_loss.dtype)
        result = SelectiveOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            lm_loss=None if lm_loss is None else lm_loss.detach(),
            memory_loss=None if memory_loss is None else memory_loss.detach(),
            kept=None if outputs.kept is None else outputs.kept.detach(),
            selection=outputs.selection,
        )
        use_dict = self.config.return_dict if return_dict is None else return_dict
        return result if use_dict else result.to_tuple()

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """`generate()` begins with a cache that keeps F; transformers' default would lose it."""
        if generation_config.cache_implementation is not None:
            raise SelattnError(
                f"cache_implementation={generation_config.cache_implementation!r} does not keep F: leave it out"
            )
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = SelectiveCache()
