"""The seam: what evaluation, search, generation, pictures and a server need of a model, and nothing else.

Any object that satisfies `LanguageModel` can be evaluated, searched and generated from, without a class of selattn. The
other protocols are optional: with `LayeredModel` a search runs the layers that a trial changes and no others, and with
`WatchedModel` there are pictures.

Shapes: B rows, N tokens, L layers, H heads, S masks, V tokens in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from selattn.cache import Budgets, Policy
from selattn.errors import SelattnError, unknown
from selattn.ops import Fixed, Pattern, Strided

# -- kinds of attention -----------------------------------------------------------------------------------------------
#
#     selective          the paper's; `selective:W` sees the last W keys only
#     standard           causal attention
#     local:W            the last W keys, the own one included
#     strided:L          Child et al.'s strided pattern with stride L
#     fixed:L:C          Child et al.'s fixed pattern with blocks of L, the last C tokens of each seen by all
#
# A config holds a list of them that is repeated over the layers: `["local:32", "local:32", "local:32", "standard"]` is
# three local layers and a global one, again and again.

# kind -> how many numbers it takes, at least and at most, and how it is written
_FORMS = {
    "selective": (0, 1, "selective or selective:WINDOW"),
    "standard": (0, 0, "standard"),
    "local": (1, 1, "local:WINDOW"),
    "strided": (1, 1, "strided:STRIDE"),
    "fixed": (2, 2, "fixed:STRIDE:SUMMARY"),
}


@dataclass(frozen=True)
class AttentionKind:
    """The attention of one layer."""

    text: str
    selective: bool = False
    window: int | None = None
    pattern: Pattern | None = None


def parse_kind(text: str) -> AttentionKind:
    """The kind that a text of the table above means."""
    name, *rest = str(text).split(":")
    if name not in _FORMS:
        raise SelattnError(unknown("attention kind", name, _FORMS, [form for *_, form in _FORMS.values()]))
    least, most, form = _FORMS[name]
    if not least <= len(rest) <= most or not all(number.isdecimal() for number in rest):
        raise SelattnError(f"attention kind {text!r} is not of the form {form}")
    numbers = [int(number) for number in rest]
    if 0 in numbers:
        raise SelattnError(f"attention kind {text!r}: a window, stride or summary must be at least 1")
    if name == "strided":
        return AttentionKind(text, pattern=Strided(numbers[0]))
    if name == "fixed":
        return AttentionKind(text, pattern=Fixed(numbers[0], numbers[1]))
    return AttentionKind(text, selective=name == "selective", window=numbers[0] if numbers else None)


def layer_kinds(attention: list[str], layers: int) -> list[AttentionKind]:
    """The kind of each layer: the list, repeated."""
    return [parse_kind(attention[layer % len(attention)]) for layer in range(layers)]


# -- models -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Description:
    """A model without its weights.

    Attributes:
        kinds: the attention of each layer.
        vocab_size: V.
        context: the context size, which is N unless a user says otherwise.
        longest: the longest sequence that the model can read; None if there is no such limit.
        heads: query heads of a layer.
        budgets: K_l, in force unless others are given; None for no limit.
        policy: which token is evicted when a layer is full, unless another is given; in a config a name.
        shift: whether a token's selection counts for later queries only.
        ends: the tokens that end a text.
    """

    kinds: tuple[AttentionKind, ...]
    vocab_size: int
    context: int
    longest: int | None = None
    heads: int = 1
    budgets: Budgets | None = None
    policy: str | Policy = "selective"
    shift: bool = True
    ends: tuple[int, ...] = ()

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return len(self.kinds)

    @property
    def selects(self) -> bool:
        """Whether any layer selects."""
        return any(kind.selective for kind in self.kinds)


def end_tokens(eos_token_id: int | Sequence[int] | None) -> tuple[int, ...]:
    """The tokens that end a text, as a config of transformers names them: none, one, or several."""
    if eos_token_id is None:
        return ()
    return (eos_token_id,) if isinstance(eos_token_id, int) else tuple(eos_token_id)


class Output(Protocol):
    """The result of a forward; models may return more."""

    @property
    def logits(self) -> Any:
        """[B, N, V], or of the last `logits_to_keep` tokens only."""


class KVCache(Protocol):
    """The state of a model's texts between their tokens, a row for each; it owns its budgets and policy.

    `selattn.models.Engine` needs all of it.
    """

    @property
    def rows(self) -> int:
        """The rows there are; 0 as long as it was not used and none are reserved."""

    def reserve(self, rows: int, /) -> None:
        """Have at least this many rows."""

    def only(self, rows: Sequence[int], /) -> AbstractContextManager[None]:
        """A context in which the batch is these rows, in this order; the others keep what they have."""

    def clear_rows(self, rows: Sequence[int], /) -> None:
        """Empty these rows: their next tokens begin new texts."""

    def drafting(self) -> AbstractContextManager[None]:
        """A context in which tokens can be taken back."""

    def roll_back(self, counts: Sequence[int], /) -> None:
        """Take back the last counts[i] tokens of row i, padding included, with all that they evicted."""

    def get_seq_length(self) -> int:
        """Tokens of the longest row so far, evicted ones included."""

    def nbytes(self) -> int:
        """Bytes of all that it holds."""

    def full_nbytes(self) -> int:
        """Bytes of the keys and values of all tokens so far, as a cache that drops nothing would hold them."""


@runtime_checkable
class LanguageModel(Protocol):
    """A causal language model with a pruned cache. A `torch.nn.Module` with these members is one."""

    @property
    def description(self) -> Description:
        """The model without its weights."""

    @property
    def device(self) -> torch.device:
        """Where its inputs belong."""

    def __call__(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        cache_budgets: Budgets | None = None,
        cache_policy: Policy | None = None,
    ) -> Any:
        """The logits (`Output`) of whole rows with budgets in force, or of the next tokens of a cache.

        Args:
            input_ids: [B, N].
            attention_mask: [B, N], 0 for padding; None without padding.
            position_ids: [B, N] that restart at each document of a packed row; None for one document in each row.
            past_key_values: of `new_cache`; the tokens continue what it holds, under its own budgets and policy.
            use_cache: False makes no cache of whole rows.
            logits_to_keep: only the logits of this many last tokens; 0 for all.
            cache_budgets: K_l; None for the model's own.
            cache_policy: which token is evicted when a layer is full; None for the model's own.
        """

    def new_cache(self, budgets: Budgets | None = None, policy: Policy | None = None) -> KVCache:
        """An empty cache; with the model's own budgets and policy unless others are given."""


@runtime_checkable
class LayeredModel(LanguageModel, Protocol):
    """A model that can be run a layer at a time.

    `enter`, `run_layer` for each layer, `leave` and `head` are together its forward.
    """

    def states(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache_budgets: Budgets | None = None,
        cache_policy: Policy | None = None,
    ) -> Tensor:
        """The input of `head`, [B, N, d_model]: a forward without the head, whose logits can be large."""

    def head(self, states: Tensor) -> Tensor:
        """The logits, [..., V], of some of these states."""

    def enter(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """The input of the first layer, [B, N, d_model], and what all layers share."""

    def run_layer(self, layer: int, x: Tensor, shared: Any, budget: int | None, policy: Policy) -> Tensor:
        """The input of the next layer; a budget of None evicts nothing."""

    def leave(self, x: Tensor) -> Tensor:
        """The input of `head`, from the output of the last layer."""


class LayerView(NamedTuple):
    """A layer in a picture."""

    f: Tensor | None  # F [B, S, N, N]; None if the layer does not select
    weights: Tensor | None  # [B, H, N, N]; None if they were not asked for


@runtime_checkable
class WatchedModel(LanguageModel, Protocol):
    """A model of which pictures can be made."""

    def watch(self, input_ids: Tensor, weights: bool = True) -> Iterator[LayerView]:
        """F and attention weights of whole rows without budgets, one layer after another: all at once are large."""

    def evictions(self, input_ids: Tensor, budgets: Budgets, policy: Policy) -> Sequence[Tensor]:
        """The row from which each token is evicted, [B, P, N] of each layer; N or more if it stays.

        P is 1, or the number of key-value heads where each evicts on its own.
        """
