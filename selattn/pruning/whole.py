"""Losses of budgets that differ in a single layer, for a model that can only be run whole: each trial is a forward."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from selattn.cache import Budgets, Policy, import_policy
from selattn.evaluation.batches import Batch
from selattn.evaluation.losses import batch_loss, count_tokens
from selattn.models.seam import LanguageModel, LayeredModel
from selattn.pruning.trials import Trials
from selattn.utils.distributed import Team


class WholeTrials:
    """What `Trials` is for layered models, at the price of a forward for each trial.

    Args:
        model: in evaluation mode.
        batches: the search set, all of it in every process.
        budgets: K_l to begin with.
        policy: who leaves when a layer is full.
        team: the processes that share the batches.

    Attributes:
        budgets: the current ones.
        loss: the mean loss of the search set under them.
        evaluations: layer evaluations so far, the first pass over all layers included.
    """

    def __init__(
        self,
        model: LanguageModel,
        batches: Sequence[Batch],
        budgets: Sequence[int],
        policy: str | Policy = "selective",
        team: Team | None = None,
    ) -> None:
        self._model, self._team, self._policy = model, team or Team(), import_policy(policy)
        self._all, self._tokens = len(batches), count_tokens(batches)
        self._batches = [batch.to(model.device) for batch in self._team.share(batches)]
        self.budgets = tuple(budgets)
        self._runs = 0
        self._sums = [self._sum(batch, self.budgets) for batch in self._batches]
        self._tried: dict[tuple[int, int], list[float]] = {}  # (layer, budget) of a trial -> sums of the batches
        self.loss = self._mean(self._sums)

    @property
    def evaluations(self) -> float:
        """Layer evaluations so far, by all processes."""
        return self._team.total([float(self._runs)]) / self._all

    def loss_with(self, layer: int, budget: int) -> float:
        """The mean loss with another budget in one layer, smaller than the current one."""
        changed = (*self.budgets[:layer], budget, *self.budgets[layer + 1 :])
        # Where the layer drops nothing, nothing changes.
        sums = [
            before if batch.longest <= budget else self._sum(batch, changed)
            for batch, before in zip(self._batches, self._sums, strict=True)
        ]
        self._tried[layer, budget] = sums
        return self._mean(sums)

    def accept(self, layer: int, budget: int) -> None:
        """Make a trial's budget the current one."""
        if (layer, budget) not in self._tried:
            self.loss_with(layer, budget)
        self._sums = self._tried[layer, budget]
        self.loss = self._mean(self._sums)
        self.budgets = (*self.budgets[:layer], budget, *self.budgets[layer + 1 :])
        self._tried = {}

    def _sum(self, batch: Batch, budgets: tuple[int, ...]) -> float:
        self._runs += len(budgets)
        with torch.inference_mode():
            return batch_loss(self._model, batch, Budgets(budgets), self._policy)

    def _mean(self, sums: Sequence[float]) -> float:
        return self._team.total(sums) / self._tokens


def make_trials(
    model: LanguageModel, batches: Sequence[Batch], budgets: Sequence[int], policy: str | Policy, team: Team
) -> Trials | WholeTrials:
    """Trials that cost as little as the model allows."""
    if isinstance(model, LayeredModel):
        return Trials(model, batches, budgets, policy, team)
    return WholeTrials(model, batches, budgets, policy, team)
