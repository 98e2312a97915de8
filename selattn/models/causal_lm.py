"""The decoder with its language-model head: what is trained, generated from and scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache

from selattn.cache import Budgets, Policy
from selattn.models.base import SelectivePreTrainedModel
from selattn.models.by_layer import ByLayer
from selattn.models.config import SelectiveConfig
from selattn.models.decoder import SelectiveModel
from selattn.models.evicting import PrunedGeneration
from selattn.models.inputs import EMPTY, check_given, refuse_unknown, sequences_of
from selattn.models.memory_loss import memory_term, share_of_labels
from selattn.models.outputs import SelectiveModelOutput, SelectiveOutput
from selattn.ops import Sequences


class SelectiveForCausalLM(  # type: ignore[misc]  # transformers declares that making a cache gives a bool
    ByLayer, PrunedGeneration, SelectivePreTrainedModel, GenerationMixin
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
        output_f: bool = False,
        output_kept: bool = False,
        output_evictions: bool = False,
        selection_strength: float | Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        seq_idx: Tensor | None = None,
        cache_budgets: Budgets | int | Sequence[int] | None = None,
        cache_policy: str | Policy | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> SelectiveOutput | tuple[Any, ...]:
        """As in any causal language model of transformers; see `SelectiveModel.forward` for what is ours.

        With labels the loss is the cross-entropy of the next token plus the memory term, both weighted by
        `num_items_in_batch` when a trainer that accumulates gradients gives it. A token's target is the next token of
        its sequence, also if padding stands between them: nothing crosses a sequence's border.

        Args:
            labels: [B, N], token ids, -100 for those that are not to be predicted.
            output_kept: return the kept fraction of each layer also when there are no labels.
            shift_labels: [B, N], instead of labels: what each token is to predict, used as it is. (It is not a named
                argument because the trainer takes all that are named so for labels that every batch must have.)
        """
        shift_labels: Tensor | None = kwargs.pop("shift_labels", None)
        refuse_unknown(kwargs, type(self).forward)
        if labels is not None:
            check_given(input_ids, inputs_embeds, self.config.hidden_size, labels=labels)
        given = shift_labels if shift_labels is not None or labels is None else next_tokens(labels)
        learns = given is not None
        outputs: SelectiveModelOutput = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            output_f=output_f,
            output_kept=output_kept or (learns and self.config.selects and _is_new(past_key_values)),
            output_evictions=output_evictions,
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
        if given is not None:
            wanted = given
            if labels is not None and shift_labels is None:
                past = 0 if past_key_values is None else past_key_values.get_seq_length() - labels.shape[1]
                limits = (attention_mask, position_ids, cu_seq_lens_q, seq_idx, labels.device)
                sequences, _ = sequences_of((labels.shape[0], labels.shape[1]), past, *limits)
                wanted = next_tokens(labels, sequences)
            loss = lm_loss = self.loss_function(
                logits, None, self.config.vocab_size, num_items_in_batch, shift_labels=wanted
            )
            if outputs.kept is not None:
                memory_loss = memory_term(outputs.kept.to(loss.device), self.config.memory_epsilon)
                memory_loss = memory_loss * share_of_labels(given.to(loss.device), num_items_in_batch)
                if self.config.memory_epsilon:
                    loss = lm_loss + memory_loss
        result = SelectiveOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            lm_loss=None if lm_loss is None else lm_loss.detach().clone(),  # the Trainer scales the loss in place
            memory_loss=None if memory_loss is None else memory_loss.detach(),
            kept=None if outputs.kept is None else outputs.kept.detach(),
            f=outputs.f,
            evicted_at=outputs.evicted_at,
        )
        use_dict = self.config.return_dict if return_dict is None else return_dict
        return result if use_dict else result.to_tuple()

    def _validate_model_kwargs(self, model_kwargs: dict[str, Any]) -> None:
        """`generate()` passes on what `forward` accepts when it is empty."""
        rest = {name: value for name, value in model_kwargs.items() if name not in EMPTY}
        super()._validate_model_kwargs(rest)  # type: ignore[misc]  # declared for a protocol of transformers' own


def _is_new(cache: Cache | None) -> bool:
    return cache is None or cache.get_seq_length() == 0


def next_tokens(labels: Tensor, sequences: Sequences | None = None) -> Tensor:
    """[B, N] what each token is to predict: the label of the next token of its sequence, -100 if there is none.

    The labels are those of the last N tokens of the sequences.
    """
    if sequences is None:
        return nn.functional.pad(labels[..., 1:], (0, 1), value=-100)
    length = labels.shape[-1]
    real, start = sequences.real[:, -length:], sequences.start[:, -length:]
    index = torch.arange(length, device=labels.device)
    later = torch.where(real, index, length).flip(-1).cummin(-1).values.flip(-1)  # a real token here or after
    at = nn.functional.pad(later, (0, 1), value=length)[:, 1:].expand_as(labels)
    found = nn.functional.pad(labels, (0, 1), value=-100).gather(-1, at)
    same = nn.functional.pad(start, (0, 1), value=-1).expand(len(labels), -1).gather(-1, at) == start
    return found.masked_fill(~(real & same), -100)
