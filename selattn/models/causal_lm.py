"""The decoder with its language-model head: the model to train, to generate from and to score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Unpack

from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, GenerationMixin
from transformers.cache_utils import Cache
from transformers.models.auto import modeling_auto

from selattn.cache import Budgets, Policy
from selattn.data.tokenizer import SelectiveTokenizer
from selattn.models.base import SelectivePreTrainedModel
from selattn.models.config import SelectiveConfig
from selattn.models.decoder import SelectiveModel
from selattn.models.forward import OPTIONS, Pass, PassOptions, PrunedGeneration
from selattn.models.inputs import EMPTY, Told, check_given, refuse_unknown, sequences_of
from selattn.models.outputs import (
    SelectiveModelOutput,
    SelectiveOutput,
    next_tokens,
    share_of_labels,
    with_memory_term,
)
from selattn.models.protocols import Description, LayerView
from selattn.ops import AuxRequest, Sequences


class SelectiveForCausalLM(  # type: ignore[misc]  # transformers declares that making a cache gives a bool
    PrunedGeneration, SelectivePreTrainedModel, GenerationMixin
):
    """The decoder with its language-model head. Any trainer that passes labels trains it, memory term included."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012 (transformers' own convention)
    _fsdp_plan = {"lm_head": "keep_full_weight"}  # noqa: RUF012

    def __init__(self, config: SelectiveConfig) -> None:
        super().__init__(config)
        self.model = SelectiveModel(self.config, share_config=True)
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
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        cu_seq_lens_q: Tensor | None = None,
        seq_idx: Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Unpack[PassOptions],
    ) -> SelectiveOutput | tuple[Any, ...]:
        """As in any causal language model of transformers; see `SelectiveModel.forward` for the rest.

        With labels the loss is the cross-entropy of the next token plus the memory term, both weighted by
        `num_items_in_batch` when a trainer that accumulates gradients gives it. A token's target is the next token of
        its sequence, also if padding stands between them: nothing crosses a sequence's border.

        Args:
            labels: [B, N], token ids, -100 for those that are not predicted.
            shift_labels: [B, N], instead of labels: the target of each token, used as it is. (It is not a named
                argument because the trainer takes all that are named so for labels that every batch must have.)
        """
        options: dict[str, Any] = {**kwargs}
        shift_labels: Tensor | None = options.pop("shift_labels", None)
        refuse_unknown(options, type(self).forward, OPTIONS)
        told = Told(attention_mask, position_ids, cu_seq_lens_q, seq_idx)
        if labels is not None:
            check_given(input_ids, inputs_embeds, self.config.hidden_size, told, labels)
        targets = shift_labels if shift_labels is not None or labels is None else next_tokens(labels)
        if targets is not None and self.config.selects:
            begins = past_key_values is None or past_key_values.get_seq_length() == 0
            options["output_kept"] = options.get("output_kept", False) or begins
        outputs: SelectiveModelOutput = self.model(
            input_ids=input_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
            **told._asdict(),
            **options,
        )
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        assert outputs.last_hidden_state is not None
        logits = self.lm_head(outputs.last_hidden_state[:, keep, :])
        losses: dict[str, Any] = {}
        if targets is not None:
            wanted = targets
            if labels is not None and shift_labels is None:
                wanted = next_tokens(labels, _sequences_of(labels, told, past_key_values))
            loss = self.loss_function(logits, None, self.config.vocab_size, num_items_in_batch, shift_labels=wanted)
            share = share_of_labels(targets.to(loss.device), num_items_in_batch)
            losses = with_memory_term(loss, outputs.kept, self.config.memory_epsilon, share)
        elif outputs.kept is not None:
            losses = {"kept": outputs.kept.detach()}
        result = SelectiveOutput(
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            f=outputs.f,
            evicted_at=outputs.evicted_at,
            **losses,
        )
        use_dict = self.config.return_dict if return_dict is None else return_dict
        return result if use_dict else result.to_tuple()

    def _validate_model_kwargs(self, model_kwargs: dict[str, Any]) -> None:
        """`generate()` passes on what `forward` accepts when it is empty."""
        super()._validate_model_kwargs({name: value for name, value in model_kwargs.items() if name not in EMPTY})

    # -- budgets: the decoder's ---------------------------------------------------------------------------------------

    def own_eviction(self) -> tuple[Budgets | None, str | Policy]:
        """Budgets and policy of the config."""
        return self.model.own_eviction()

    @property
    def selects(self) -> bool:
        """Whether any layer selects."""
        return self.model.selects

    def layer_counts(self) -> tuple[int, int]:
        """The layers that run, and all layers."""
        return self.model.layer_counts()

    # -- what evaluation, search and pictures need (`selattn.models.protocols`) ------

    @property
    def description(self) -> Description:
        """The model without its weights, from the config alone."""
        return self.config.description

    def states(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache_budgets: Budgets | None = None,
        cache_policy: Policy | None = None,
    ) -> Tensor:
        """The output of the last norm for whole rows, [B, N, d_model]."""
        told = {"attention_mask": attention_mask, "position_ids": position_ids}
        limits = {"cache_budgets": cache_budgets, "cache_policy": cache_policy}
        states: Tensor = self.model(input_ids, use_cache=False, return_dict=True, **told, **limits).last_hidden_state
        return states

    def head(self, states: Tensor) -> Tensor:
        """The logits, [..., V], of outputs of the last norm."""
        logits: Tensor = self.lm_head(states)
        return logits

    def enter(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> tuple[Tensor, Pass]:
        """The input of the first layer, [B, N, d_model], and what all layers share."""
        return self.model.enter(input_ids, attention_mask, position_ids)

    def run_layer(self, layer: int, x: Tensor, shared: Pass, budget: int | None, policy: Policy) -> Tensor:
        """The output of a layer, [B, N, d_model], with this budget in it."""
        limits: list[int | None] = [None] * len(self.model.layers)
        limits[layer] = budget
        y: Tensor = self.model.layers[layer](x, replace(shared, budgets=tuple(limits), policy=policy))[0]
        return y

    def leave(self, x: Tensor) -> Tensor:
        """The last norm, of the output of the last layer."""
        states: Tensor = self.model.norm(x)
        return states

    def watch(self, input_ids: Tensor, weights: bool = True) -> Iterator[LayerView]:
        """F and attention weights of each layer, without budgets; of one layer at a time."""
        x, shared = self.model.enter(input_ids)
        shared = replace(shared, budgets=None, wanted=AuxRequest(f=True, weights=weights))
        for layer in self.model.layers:
            x, _, f, seen, _ = layer(x, shared)
            yield LayerView(f, seen)

    def evictions(self, input_ids: Tensor, budgets: Budgets, policy: Policy) -> Sequence[Tensor]:
        """The row from which each token is evicted, [B, P, N] of each layer."""
        limits = {"cache_budgets": budgets, "cache_policy": policy}
        rows: Sequence[Tensor] = self.model(input_ids, use_cache=False, output_evictions=True, **limits).evicted_at
        return rows


def _sequences_of(labels: Tensor, told: Told, cache: Cache | None) -> Sequences | None:
    """The sequences of labels whose tokens are the last that a cache has seen."""
    shape = (labels.shape[0], labels.shape[1])
    past = 0 if cache is None else cache.get_seq_length() - shape[1]
    return sequences_of(shape, past, told, labels.device)[0]


def register() -> None:
    """Make the `Auto` classes know the decoder and its tokenizer; registering twice is harmless."""
    AutoConfig.register(SelectiveConfig.model_type, SelectiveConfig, exist_ok=True)
    AutoTokenizer.register(SelectiveConfig, fast_tokenizer_class=SelectiveTokenizer, exist_ok=True)
    AutoModel.register(SelectiveConfig, SelectiveModel, exist_ok=True)
    AutoModelForCausalLM.register(SelectiveConfig, SelectiveForCausalLM, exist_ok=True)
    # The trainer (label smoothing: are labels to be shifted?) and the pipelines look into these tables of names.
    modeling_auto.MODEL_MAPPING_NAMES[SelectiveConfig.model_type] = SelectiveModel.__name__
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[SelectiveConfig.model_type] = SelectiveForCausalLM.__name__
