"""How the decoder is run a layer at a time, for the search and for pictures: `LayeredModel` and `WatchedModel`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from selattn.cache import Budgets, Policy, SelectiveCache
from selattn.models.config import SelectiveConfig
from selattn.models.decoder import SelectiveModel
from selattn.models.passes import Pass
from selattn.models.seam import Description, LayerView
from selattn.ops import AuxRequest


class ByLayer:
    """Of a causal language model: a decoder, `model`, and a head, `lm_head`."""

    config: Any  # a SelectiveConfig; transformers declares another
    model: SelectiveModel
    lm_head: nn.Linear

    @property
    def description(self) -> Description:
        """What is known of the model without its weights."""
        config: SelectiveConfig = self.config
        return config.description

    def new_cache(
        self, budgets: Budgets | int | Sequence[int] | None = None, policy: str | Policy | None = None
    ) -> SelectiveCache:
        """An empty cache for this model, with the model's budgets and policy unless others are given."""
        return self.model.new_cache(budgets, policy)

    def layer_counts(self) -> tuple[int, int]:
        """The layers that run, and those that there are."""
        return self.model.layer_counts()

    def fits(self, budgets: Budgets | int | Sequence[int] | None) -> bool:
        """Whether budgets are for as many layers as there are."""
        return self.model.fits(budgets)

    def states(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache_budgets: Budgets | None = None,
        cache_policy: Policy | None = None,
    ) -> Tensor:
        """What the last norm gives for whole rows, [B, N, d_model]."""
        found: Tensor = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            use_cache=False,
            cache_budgets=cache_budgets,
            cache_policy=cache_policy,
            return_dict=True,
        ).last_hidden_state
        return found

    def head(self, states: Tensor) -> Tensor:
        """The logits, [..., V], of what the last norm gives."""
        found: Tensor = self.lm_head(states)
        return found

    def enter(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> tuple[Tensor, Pass]:
        """What enters the first layer, [B, N, d_model], and what all layers share."""
        return self.model.enter(input_ids, attention_mask, position_ids)

    def run_layer(self, layer: int, x: Tensor, shared: Pass, budget: int | None, policy: Policy) -> Tensor:
        """What a layer gives, [B, N, d_model], with this budget in it."""
        limits: list[int | None] = [None] * len(self.model.layers)
        limits[layer] = budget
        found: Any = self.model.layers[layer](x, replace(shared, budgets=tuple(limits), policy=policy))
        y: Tensor = found[0]
        return y

    def leave(self, x: Tensor) -> Tensor:
        """The last norm, of what the last layer gives."""
        found: Tensor = self.model.norm(x)
        return found

    def watch(self, input_ids: Tensor, weights: bool = True) -> Iterator[LayerView]:
        """F and attention weights of each layer, without budgets; of one layer at a time."""
        x, shared = self.model.enter(input_ids)
        shared = replace(shared, budgets=None, wanted=AuxRequest(f=True, weights=weights))
        for layer in self.model.layers:
            x, _, f, seen, _ = layer(x, shared)
            yield LayerView(f, seen)

    def evictions(self, input_ids: Tensor, budgets: Budgets, policy: Policy) -> Sequence[Tensor]:
        """The row from which each token is gone, [B, P, N] of each layer."""
        found: Sequence[Tensor] = self.model(
            input_ids=input_ids,
            use_cache=False,
            cache_budgets=budgets,
            cache_policy=policy,
            output_evictions=True,
            return_dict=True,
        ).evicted_at
        return found
