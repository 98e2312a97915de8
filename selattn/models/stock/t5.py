"""T5 made selective, in its decoder's self-attention; the encoder and the cross-attention stay as they are.

The position bias is added to the logits before S is made of them. Stock code computes it for keys that stand side by
side, which those of a pruned cache do not: here it is computed from positions.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache

from selattn.cache import Budgets, Policy
from selattn.errors import SelattnError
from selattn.models.kinds import AttentionKind
from selattn.models.memory_loss import share_of_labels
from selattn.models.passes import Told, begin
from selattn.models.seam import Description
from selattn.models.stock.attention import NAME, PASS
from selattn.models.stock.form import add_forms
from selattn.models.stock.model import StockBase, add_results
from selattn.models.stock.settings import StockSettings


class PositionBias:
    """T5's bias [B, H, n, M] of queries at some positions and keys at others: a learned number for each distance."""

    def __init__(self, first: Any) -> None:
        self.first = first  # the self-attention of the first layer, which has the numbers for all layers

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """From positions [B, n] and [B, M]."""
        first = self.first
        bucket = first._relative_position_bucket(
            key[:, None, :] - query[:, :, None],
            bidirectional=False,
            num_buckets=first.relative_attention_num_buckets,
            max_distance=first.relative_attention_max_distance,
        )
        found: Tensor = first.relative_attention_bias(bucket).permute(0, 3, 1, 2)
        return found


class T5Selective(StockBase):
    """What a selective T5 adds; it stands before `T5ForConditionalGeneration` among the bases."""

    decoder: Any

    @property
    def description(self) -> Description:
        """What is known of the decoder without its weights."""
        return describe_t5(self.config)

    def layer_counts(self) -> tuple[int, int]:
        """The layers of the decoder."""
        layers = self.config.num_decoder_layers
        return layers, layers

    def new_cache(
        self, budgets: Budgets | int | Sequence[int] | None = None, policy: str | Policy | None = None
    ) -> Any:
        """An empty cache: pruned for the decoder's own tokens, and whole for the encoder's."""
        return EncoderDecoderCache(super().new_cache(budgets, policy), DynamicCache())

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        output_f: bool = False,
        output_kept: bool = False,
        output_evictions: bool = False,
        selection_strength: float | Tensor | None = None,
        cache_budgets: Budgets | int | Sequence[int] | None = None,
        cache_policy: str | Policy | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """As in the stock model, with what is ours as in a decoder made selective.

        The loss is the mean over the labels that are not -100; what is padding in the decoder is told by
        `decoder_attention_mask` alone, since T5's first token is its padding token.
        """
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self._shift_right(labels)
        given = decoder_input_ids if decoder_input_ids is not None else decoder_inputs_embeds
        if given is None:
            raise SelattnError("give decoder_input_ids, decoder_inputs_embeds or labels: the decoder reads these")
        now = begin(
            self,
            (given.shape[0], given.shape[1]),
            given.device,
            Told(decoder_attention_mask),
            self._rules(),
            strength=selection_strength,
            cache=_decoder_cache(past_key_values),
            use_cache=use_cache,
            budgets=cache_budgets,
            policy=cache_policy,
            output_f=output_f,
            output_kept=output_kept,
            output_evictions=output_evictions,
            output_attentions=kwargs.get("output_attentions"),
            learns=labels is not None and self.settings.selection is not None,
            backend=self.settings.backend,
        )
        if past_key_values is None and now.cache is not None:
            past_key_values = EncoderDecoderCache(now.cache, DynamicCache())
        result = super().forward(  # type: ignore[misc]
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            labels=labels,
            use_cache=now.cache is not None,
            return_dict=True,
            **{PASS: now},
            **kwargs,
        )
        share: Tensor | float = 1.0
        if labels is not None:
            share = share_of_labels(labels, num_items_in_batch)
            result["loss"] = result.loss * share  # a step of several batches is the mean over all its labels
        result = add_results(result, now, self.settings.memory_epsilon, given, share)
        use_dict = self.config.return_dict if return_dict is None else return_dict
        return result if use_dict else result.to_tuple()

    def equip(self) -> None:
        """The decoder's self-attention gets our function, the position bias, and a selecting form if there is one."""
        found = [block.layer[0].SelfAttention for block in self.decoder.block]
        bias = PositionBias(found[0])
        for module in found:
            # A config of its own: cross-attention and masks go by the decoder's.
            module.config = copy.deepcopy(module.config)
            module.config._attn_implementation = NAME
            module.__dict__["selattn_bias"] = bias  # not a part of the module: the first layer has it already
        add_forms(found, self.settings.form, self.config)

    def unequip(self) -> None:
        """As in the stock model."""
        for block in self.decoder.block:
            module: nn.Module = block.layer[0].SelfAttention
            module.config = self.decoder.config
            del module.__dict__["selattn_bias"]


def _decoder_cache(cache: Any) -> Any:
    """The cache of the decoder's own tokens; None if there is no cache."""
    if cache is not None and not isinstance(cache, EncoderDecoderCache):
        raise SelattnError("T5 has an EncoderDecoderCache: make one with new_cache()")
    return None if cache is None else cache.self_attention_cache


def describe_t5(config: Any) -> Description:
    """What a selective T5 config says of the decoder."""
    settings = StockSettings.from_dict(config.selattn)
    selects = settings.selection is not None
    return Description(
        kinds=(AttentionKind("selective" if selects else "standard", selects),) * config.num_decoder_layers,
        vocab_size=config.vocab_size,
        context=512,
        heads=config.num_heads,
        budgets=settings.budgets,
        policy=settings.cache_policy,
        shift=settings.selection is None or settings.selection.shift,
    )
