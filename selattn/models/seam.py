"""The seam: what evaluation, search, generation, pictures and a server need of a model, and nothing else.

Whatever satisfies `LanguageModel` can be evaluated, searched and generated from; no class of ours is needed. The other
protocols are optional: with `LayeredModel` a search runs the layers that a trial changes and no others, and with
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
from selattn.models.kinds import AttentionKind


@dataclass(frozen=True)
class Description:
    """What is known of a model without its weights.

    Attributes:
        kinds: the attention of each layer.
        vocab_size: V.
        context: the context size, which is N unless a user says otherwise.
        longest: the longest sequence that the model can read; None if there is no such limit.
        heads: query heads of a layer.
        budgets: K_l, in force unless others are given; None for no limit.
        policy: who leaves when a layer is full, unless another is given; as a config has it, one of the names.
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


def end_tokens(found: int | Sequence[int] | None) -> tuple[int, ...]:
    """The tokens that end a text, as a config of transformers names them: none, one, or several."""
    if found is None:
        return ()
    return (found,) if isinstance(found, int) else tuple(found)


class Output(Protocol):
    """What a forward gives back; models may give more."""

    @property
    def logits(self) -> Any:
        """[B, N, V], or of the last tokens only if so many were asked for."""


class KVCache(Protocol):
    """What a model keeps between the tokens of its texts, a row for each; budgets and policy are the cache's own.

    The engine (`selattn.models.engine`) asks for all of it. Who writes one text at a time, without drafts, needs
    no rows, no `drafting` and no `roll_back`.
    """

    @property
    def rows(self) -> int:
        """The rows there are; 0 as long as it was not used and none are reserved."""

    def reserve(self, rows: int, /) -> None:
        """Have at least so many rows."""

    def only(self, rows: Sequence[int], /) -> AbstractContextManager[None]:
        """A context in which the batch is these rows, in this order; the others keep what they have."""

    def clear_rows(self, rows: Sequence[int], /) -> None:
        """Empty these rows: their next tokens begin new texts."""

    def drafting(self) -> AbstractContextManager[None]:
        """A context in which tokens can be taken back."""

    def roll_back(self, counts: Sequence[int], /) -> None:
        """Take back the last counts[i] tokens of row i, padding included, with all that they evicted."""

    def get_seq_length(self) -> int:
        """Tokens of the longest row so far, those that have left included."""

    def nbytes(self) -> int:
        """Bytes of all that it holds."""

    def full_nbytes(self) -> int:
        """Bytes of the keys and values of all tokens so far, as a cache that drops nothing would hold them."""


@runtime_checkable
class LanguageModel(Protocol):
    """A causal language model with a pruned cache. A `torch.nn.Module` with these members is one."""

    @property
    def description(self) -> Description:
        """What is known of it without its weights."""

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
            logits_to_keep: only the logits of so many last tokens; 0 for all.
            cache_budgets: K_l; None for the model's own.
            cache_policy: who leaves when a layer is full; None for the model's own.
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
        """What `head` reads, [B, N, d_model]: a forward without the head, whose logits can be large."""

    def head(self, states: Tensor) -> Tensor:
        """The logits, [..., V], of some of these states."""

    def enter(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """What enters the first layer, [B, N, d_model], and what all layers share."""

    def run_layer(self, layer: int, x: Tensor, shared: Any, budget: int | None, policy: Policy) -> Tensor:
        """What enters the next layer; a budget of None drops nothing."""

    def leave(self, x: Tensor) -> Tensor:
        """What `head` reads, of what the last layer gives."""


class LayerView(NamedTuple):
    """What a picture shows of a layer."""

    f: Tensor | None  # F [B, S, N, N]; None if the layer does not select
    weights: Tensor | None  # [B, H, N, N]; None if they were not asked for


@runtime_checkable
class WatchedModel(LanguageModel, Protocol):
    """A model of which pictures can be made."""

    def watch(self, input_ids: Tensor, weights: bool = True) -> Iterator[LayerView]:
        """F and attention weights of whole rows without budgets, one layer after another: all at once are large."""

    def evictions(self, input_ids: Tensor, budgets: Budgets, policy: Policy) -> Sequence[Tensor]:
        """The row from which each token is gone, [B, P, N] of each layer; N or more if it stays.

        P is 1, or the number of key-value heads where each evicts on its own.
        """
