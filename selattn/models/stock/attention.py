"""The attention function that stock models call through transformers' `AttentionInterface`.

A `Pass` and the queries and keys of the selecting form reach it as keyword arguments, which every decoder of `FAMILIES`
passes on: no global state, and checkpointing runs a layer again with the same ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from selattn.cache import handed_over
from selattn.errors import SelattnError
from selattn.models.base import REENTRANT
from selattn.models.form import FORM
from selattn.models.forward import Pass
from selattn.ops.request import Tokens

NAME = "selattn"  # of the attention function
PASS = "selattn_pass"  # the keyword argument
# These would change attention and are not supported: no family of `FAMILIES` passes them.
UNKNOWN = ("s_aux", "sinks", "alibi", "block_mask", "head_mask", "indexer")


def selective_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The output [B, N, H, D] and the weights, if they are wanted; as transformers' own attention functions give them.

    `attention_mask` is not read: who sees whom follows from the pass's sequences, the window and the cache.
    """
    now: Pass | None = kwargs.get(PASS)
    if now is None:
        raise SelattnError(
            "a model that was made selective is called as a whole: its parts do not know its cache and sequences"
        )
    # Reentrant checkpointing runs a layer without gradients first, and the loss is made of what that run returns.
    if now.wanted.memory and now.differentiates and not torch.is_grad_enabled():
        raise SelattnError(REENTRANT)
    bias = getattr(module, "selattn_bias", None)  # T5's, by positions
    for name in (*UNKNOWN, *(("position_bias",) if bias is None else ())):
        if kwargs.get(name) is not None:
            raise SelattnError(f"{type(module).__name__} attends with {name}, which is not understood")
    layer, key, value = handed_over(key, value)
    form = kwargs.get(FORM) or (None, None)
    rules = now.rules._replace(window=sliding_window, scale=scaling, softcap=softcap, bias=bias, dropout_p=dropout)
    result = now.attend(module.layer_idx, layer, Tokens(query, key, value, None, *form), rules)
    if now.whole or any(now.wanted):  # a step of decoding has nothing to tell
        now.results.setdefault(module.layer_idx, result._replace(output=result.output.new_empty(0)))
    return result.output.transpose(1, 2).contiguous(), result.aux.weights


def no_mask(*args: Any, **kwargs: Any) -> None:
    """transformers need not build a mask: `Pass.sequences` says what is real."""


AttentionInterface.register(NAME, selective_attention_forward)
AttentionMaskInterface.register(NAME, no_mask)
