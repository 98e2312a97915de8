"""The attention function that stock models call through transformers' `AttentionInterface`.

What a pass of the model knows (`Pass`) and what the selecting form gave travel to it as keyword arguments, as every
decoder of `FAMILIES` hands them on: no global state, and checkpointing runs a layer again with the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from selattn.cache import Policy, attend, defer, evictions, in_force
from selattn.cache.handover import handed_over
from selattn.cache.slots import SlotLayer
from selattn.errors import SelattnError
from selattn.models.stock.settings import StockSettings
from selattn.ops import Attention, AuxRequest, Sequences
from selattn.ops.attention import attend_whole
from selattn.ops.request import Tokens
from selattn.ops.rules import Rules

NAME = "selattn"  # of the attention function
PASS, FORM = "selattn_pass", "selattn_form"  # the keyword arguments
# What would change attention and is not done here: nobody of `FAMILIES` passes it.
UNKNOWN = ("s_aux", "sinks", "alibi", "block_mask", "head_mask", "indexer")


@dataclass
class Pass:
    """What all layers of one forward pass share, and what they found.

    Attributes:
        settings: what the model's config says.
        sequences: over all tokens; None for one in each row and no padding.
        real: [B, N] which of the new tokens are no padding, for a cache; None for all.
        whole: the sequences begin here: attention needs no cache, though it may fill one.
        budgets: K_l of each layer, without a cache, which has its own.
        policy: who leaves.
        strength: multiplies S.
        wanted: what is wanted beside the output.
        found: what each layer gave, by its number.
    """

    settings: StockSettings
    sequences: Sequences | None
    real: Tensor | None
    whole: bool
    budgets: tuple[int | None, ...] | None
    policy: Policy
    strength: float | Tensor
    wanted: AuxRequest
    found: dict[int, Attention] = field(default_factory=dict)


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
    bias = getattr(module, "selattn_bias", None)  # T5's, by positions
    for name in (*UNKNOWN, *(("position_bias",) if bias is None else ())):
        if kwargs.get(name) is not None:
            raise SelattnError(f"{type(module).__name__} attends with {name}, which is not understood")
    layer, key, value = handed_over(key, value)
    form = kwargs.get(FORM) or (None, None)
    tokens = Tokens(query, key, value, now.real, *form)
    rules = Rules(
        selection=now.settings.selection,
        strength=now.strength,
        window=sliding_window,
        scale=scaling,
        softcap=softcap,
        bias=bias,
        dropout_p=dropout,
        tau=now.settings.memory_tau,
    )
    result = _attend(module.layer_idx, layer, tokens, rules, now)
    if now.whole or any(now.wanted):  # a step of decoding has nothing to tell
        now.found.setdefault(module.layer_idx, result._replace(output=result.output.new_empty(0)))
    return result.output.transpose(1, 2).contiguous(), result.aux.weights


def _attend(number: int, layer: SlotLayer | None, tokens: Tokens, rules: Rules, now: Pass) -> Attention:
    """After what a cache keeps, or of whole sequences."""
    backend = now.settings.backend
    if layer is not None and not now.whole:
        return attend(layer, tokens, rules, now.wanted, backend)
    budget = layer.budget if layer is not None else None if now.budgets is None else now.budgets[number]
    tokens = tokens._replace(real=None)
    gone = None
    if in_force(budget, now.policy):
        gone = evictions(tokens, now.sequences, rules, budget, now.policy, backend)
    result = attend_whole(tokens, now.sequences, rules, now.wanted, backend, gone)
    if layer is not None:
        defer(layer, tokens._replace(real=now.real), rules, backend)
    return result


def add_form(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A hook before an attention module: its selecting form reads what the module reads."""
    states = args[0] if args else kwargs["hidden_states"]
    form: Any = module.selecting_form
    return args, {**kwargs, FORM: form(states)}


def no_mask(*args: Any, **kwargs: Any) -> None:
    """transformers need not build a mask: `Pass.sequences` says what is real."""


AttentionInterface.register(NAME, selective_attention_forward)
AttentionMaskInterface.register(NAME, no_mask)
