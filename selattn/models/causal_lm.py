"""The decoder with its language-model head: what is trained, generated from and scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache

from selattn.cache import Budgets
from selattn.errors import SelattnError
from selattn.models.base import SelectivePreTrainedModel
from selattn.models.config import SelectiveConfig
from selattn.models.decoder import SelectiveModel
from selattn.models.inputs import refuse_unknown
from selattn.models.memory_loss import memory_term, share_of_labels
from selattn.models.outputs import SelectiveModelOutput, SelectiveOutput


class SelectiveForCausalLM(SelectivePreTrainedModel, GenerationMixin):
    """The decoder with its language-model head. Any trainer that passes labels trains it, memory term included."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012 (transformers' own convention)

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
        output_selection: bool = False,
        output_kept: bool = False,
        selection_strength: float | Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        seq_idx: Tensor | None = None,
        cache_budgets: Budgets | int | Sequence[int] | None = None,
        cache_policy: str | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> SelectiveOutput | tuple[Any, ...]:
        """As in any causal language model of transformers; see `SelectiveModel.forward` for what is ours.

        With labels the loss is the cross-entropy of the next token plus the memory term, both weighted by
        `num_items_in_batch` when a trainer that accumulates gradients gives it. The first token of a sequence is no
        token's target, also if it follows padding or another document: nothing crosses a sequence's border.

        Args:
            labels: [B, N], token ids, -100 for those that are not to be predicted.
            output_kept: return the kept fraction of each layer also when there are no labels.
            shift_labels: [B, N], instead of labels: what each token is to predict, used as it is. (It is not a named
                argument because the trainer takes all that are named so for labels that every batch must have.)
        """
        shift_labels: Tensor | None = kwargs.pop("shift_labels", None)
        refuse_unknown(kwargs, type(self).forward)
        learns = labels is not None or shift_labels is not None
        outputs: SelectiveModelOutput = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            output_selection=output_selection,
            output_kept=output_kept or (learns and self.config.selects and _is_new(past_key_values)),
            selection_strength=selection_strength,
            cu_seq_lens_q=cu_seq_lens_q,
            seq_idx=seq_idx,
            cache_budgets=cache_budgets,
            cache_policy=cache_policy,
            return_dict=True,
        )
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        assert outputs.last_hidden_state is not None
        logits = self.lm_head(outputs.last_hidden_state[:, keep, :])
        loss, lm_loss, memory_loss = None, None, None
        if learns:
            given = next_tokens(labels) if shift_labels is None else shift_labels
            wanted = next_tokens(labels, outputs.predictable) if shift_labels is None else shift_labels
            loss = lm_loss = self.loss_function(
                logits, None, self.config.vocab_size, num_items_in_batch, shift_labels=wanted
            )
            if outputs.kept is not None:
                memory_loss = memory_term(outputs.kept, self.config.memory_epsilon)
                memory_loss = memory_loss * share_of_labels(given, num_items_in_batch)
                if self.config.memory_epsilon:
                    loss = lm_loss + memory_loss
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

    def _prepare_cache_for_generation(  # type: ignore[override]  # declared to give a bool, and gives nothing
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """`generate()` begins with a cache that keeps F; transformers' default would lose it."""
        if generation_config.cache_implementation is not None:
            raise SelattnError(
                f"cache_implementation={generation_config.cache_implementation!r} does not keep F: leave it out"
            )
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = self.model.new_cache(
                model_kwargs.get("cache_budgets"), model_kwargs.get("cache_policy")
            )
            if generation_config.is_assistant:
                model_kwargs["past_key_values"].activate_past_recording()


def _is_new(cache: Cache | None) -> bool:
    return cache is None or cache.get_seq_length() == 0


def next_tokens(labels: Tensor | None, predictable: Tensor | None = None) -> Tensor:
    """What each token is to predict: the label after it, or -100 where that is not `predictable`."""
    assert labels is not None
    if predictable is not None:
        labels = labels.masked_fill(~predictable, -100)
    return nn.functional.pad(labels[..., 1:], (0, 1), value=-100)
