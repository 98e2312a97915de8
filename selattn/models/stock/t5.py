"""T5 made selective, in its decoder's self-attention; the encoder and the cross-attention stay as they are.

The position bias is added to the logits before S is made of them. Stock code computes it for keys that stand side by
side, which those of a pruned cache do not: here it is computed from positions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache

from selattn.cache import Budgets, Policy
from selattn.errors import SelattnError
from selattn.models.form import add_forms
from selattn.models.forward import PassOptions
from selattn.models.inputs import Told
from selattn.models.outputs import share_of_labels
from selattn.models.stock.attention import NAME, PASS
from selattn.models.stock.model import StockBase


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
        bias: Tensor = first.relative_attention_bias(bucket).permute(0, 3, 1, 2)
        return bias


class T5Selective(StockBase):
    """A selective T5: `class SelectiveT5ForConditionalGeneration(T5Selective, T5ForConditionalGeneration)`."""

    decoder: Any
    _shift_right: Callable[[Tensor], Tensor]

    def layer_counts(self) -> tuple[int, int]:
        """The layers of the decoder, all of which run."""
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
        return_dict: bool | None = None,
        **kwargs: Unpack[PassOptions],
    ) -> Any:
        """As in the stock model, with the options of `selattn.models.forward.PassOptions`.

        The loss is the mean over the labels that are not -100; `decoder_attention_mask` alone tells the padding of the
        decoder, since T5's first token is its padding token.
        """
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self._shift_right(labels)
        x = decoder_input_ids if decoder_input_ids is not None else decoder_inputs_embeds
        if x is None:
            raise SelattnError("give decoder_input_ids, decoder_inputs_embeds or labels: the decoder reads these")
        if past_key_values is not None and not isinstance(past_key_values, EncoderDecoderCache):
            raise SelattnError("T5 has an EncoderDecoderCache: make one with new_cache()")
        own = None if past_key_values is None else past_key_values.self_attention_cache
        more: dict[str, Any] = {**kwargs}
        now = self.begin(x, Told(decoder_attention_mask), more, own, use_cache, labels)
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
            **more,
        )
        share: Tensor | float = 1.0
        if labels is not None:
            share = share_of_labels(labels, num_items_in_batch)
            result["loss"] = result.loss * share  # a step of several batches is the mean over all its labels
        return self.finish(result, now, x, share, return_dict)

    def equip(self) -> None:
        """The decoder's self-attention gets our function, the position bias, and a selecting form if there is one."""
        attention = [block.layer[0].SelfAttention for block in self.decoder.block]
        bias = PositionBias(attention[0])
        for module in attention:
            # A config of its own: cross-attention and masks go by the decoder's.
            module.config = copy.deepcopy(module.config)
            module.config._attn_implementation = NAME
            module.__dict__["selattn_bias"] = bias  # not a part of the module: the first layer has it already
        add_forms(attention, self.settings.form, self.config)

    def unequip(self) -> None:
        """Undo `equip`, but for the selecting forms."""
        for block in self.decoder.block:
            module: nn.Module = block.layer[0].SelfAttention
            module.config = self.decoder.config
            del module.__dict__["selattn_bias"]
