"""Losses of budgets that differ from the current ones in a single layer, at the price of the layers that change.

The hidden states that enter each layer under the current budgets are kept. So a trial in layer l runs layers l to L
only, and if it is accepted, the states on its way are the new ones. What layer l itself gives under the budget of its
trial is kept, too, until a layer below it changes: in the next trial of that layer it is not computed again.

One layer run over the whole search set is a layer evaluation; batches that a budget cannot touch are not run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from selattn.cache import Budgets, Policy, import_policy
from selattn.evaluation.losses import Batch, batch_loss, count_tokens, head_loss
from selattn.models.protocols import LanguageModel, LayeredModel
from selattn.utils.distributed import Team
from selattn.utils.memory import available_memory


class AnyTrials(ABC):
    """The search set under the current budgets, and what one layer less would cost.

    Args:
        model: in evaluation mode.
        batches: the search set, all of it in every process.
        budgets: K_l to begin with.
        policy: which token is evicted when a layer is full.
        team: the processes that share the batches.

    Attributes:
        budgets: the current ones.
        loss: the mean loss of the search set under them.
        evaluations: layer evaluations so far by all processes, the first pass over all layers included.
    """

    loss: float

    def __init__(
        self,
        model: Any,
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

    @abstractmethod
    def loss_with(self, layer: int, budget: int) -> float:
        """The mean loss with another budget in one layer, smaller than the current one."""

    @abstractmethod
    def accept(self, layer: int, budget: int) -> None:
        """Make a trial's budget the current one."""

    @property
    def evaluations(self) -> float:
        return self._team.total([float(self._runs)]) / self._all

    def _with(self, layer: int, budget: int) -> tuple[int, ...]:
        return (*self.budgets[:layer], budget, *self.budgets[layer + 1 :])

    def _mean(self, sums: Sequence[float]) -> float:
        return self._team.total(sums) / self._tokens


class Trials(AnyTrials):
    """Trials of a layered model, at the price of the layers that change.

    Args:
        memory: bytes for hidden states. Where they do not fit, only those of every second, third, ... layer are kept
            and the ones between are computed again; that changes the time and nothing else.
    """

    def __init__(
        self,
        model: LayeredModel,
        batches: Sequence[Batch],
        budgets: Sequence[int],
        policy: str | Policy = "selective",
        team: Team | None = None,
        memory: int | None = None,
    ) -> None:
        super().__init__(model, batches, budgets, policy, team)
        self._layers = len(self.budgets)
        with torch.inference_mode():
            entries = [model.enter(b.input_ids, b.attention_mask, b.position_ids) for b in self._batches]
            self._shared = [shared for _, shared in entries]
            self._stride = self._fit([x for x, _ in entries], memory)
            self._states: list[dict[int, Tensor]] = [{} for _ in entries]  # batch -> layer -> what enters it
            self._heads: dict[int, tuple[int, list[Tensor]]] = {}  # layer -> budget of its trial, what it gives
            self._sums = [self._finish(b, 0, x, self._states[b]) for b, (x, _) in enumerate(entries)]
        self._best: _Trial | None = None
        self.loss = self._mean(self._sums)

    def loss_with(self, layer: int, budget: int) -> float:
        trial = _Trial(layer, budget, [], [])
        heads: list[Tensor] = []
        known = self._heads.get(layer)
        with torch.inference_mode():
            for b, batch in enumerate(self._batches):
                states: dict[int, Tensor] = {}
                if batch.longest <= budget:  # this layer drops nothing here, so nothing changes
                    trial.sums.append(self._sums[b])
                    heads.append(torch.empty(0))
                else:
                    if known is not None and known[0] == budget:
                        x = known[1][b]
                    else:
                        x = self._run(b, layer, self._entering(b, layer), budget)
                    heads.append(x)
                    trial.sums.append(self._finish(b, layer + 1, x, states))
                trial.states.append(states)
        if self._stride == 1:
            self._heads[layer] = (budget, heads)
        trial.loss = self._mean(trial.sums)
        if self._best is None or trial.loss < self._best.loss:
            self._best = trial  # of the others only the loss is kept
        return trial.loss

    def accept(self, layer: int, budget: int) -> None:
        if self._best is None or (self._best.layer, self._best.budget) != (layer, budget):
            self._best = None
            self.loss_with(layer, budget)
        trial = self._best
        assert trial is not None
        self.budgets = self._with(layer, budget)
        for states, new in zip(self._states, trial.states, strict=True):
            states.update(new)
        self._sums, self.loss = trial.sums, trial.loss
        self._heads = {l: head for l, head in self._heads.items() if l < layer}
        self._best = None

    def _run(self, b: int, layer: int, x: Tensor, budget: int) -> Tensor:
        """The output of a layer. A budget that evicts nothing in this batch is left out, which is cheaper."""
        self._runs += 1
        limit = budget if budget < self._batches[b].longest else None
        return self._model.run_layer(layer, x, self._shared[b], limit, self._policy)

    def _finish(self, b: int, layer: int, x: Tensor, states: dict[int, Tensor]) -> float:
        """From what enters a layer to the loss, through the layers at their current budgets; notes what enters each."""
        for l in range(layer, self._layers):
            if l % self._stride == 0:
                states[l] = x
            x = self._run(b, l, x, self.budgets[l])
        return head_loss(self._model.head, self._model.leave(x), self._batches[b])

    def _entering(self, b: int, layer: int) -> Tensor:
        """The input of a layer under the current budgets."""
        start = layer - layer % self._stride
        x = self._states[b][start]
        for l in range(start, layer):
            x = self._run(b, l, x, self.budgets[l])
        return x

    def _fit(self, entries: Sequence[Tensor], memory: int | None) -> int:
        """1 to keep the states of every layer, 2 of every second, ...

        These are the current ones, those of the best trial and of the one that is made; with all layers the heads, too.
        """
        each = sum(x.numel() * x.element_size() for x in entries)
        if memory is None:
            cuda = self._model.device.type == "cuda"
            free = torch.cuda.mem_get_info(self._model.device)[0] if cuda else available_memory()
            memory = free // (2 * self._team.size)
        if 4 * self._layers * each <= memory:
            return 1
        return next((s for s in range(2, self._layers) if 3 * -(-self._layers // s) * each <= memory), self._layers)


class _Trial:
    """One trial: the sums of the batches' losses, and what enters the layers above."""

    def __init__(self, layer: int, budget: int, sums: list[float], states: list[dict[int, Tensor]]) -> None:
        self.layer, self.budget, self.sums, self.states = layer, budget, sums, states
        self.loss = float("nan")


class WholeTrials(AnyTrials):
    """Trials of any model, at the price of a forward for each."""

    def __init__(
        self,
        model: LanguageModel,
        batches: Sequence[Batch],
        budgets: Sequence[int],
        policy: str | Policy = "selective",
        team: Team | None = None,
    ) -> None:
        super().__init__(model, batches, budgets, policy, team)
        self._sums = [self._sum(batch, self.budgets) for batch in self._batches]
        self._tried: dict[tuple[int, int], list[float]] = {}  # (layer, budget) of a trial -> sums of the batches
        self.loss = self._mean(self._sums)

    def loss_with(self, layer: int, budget: int) -> float:
        sums = [
            before if batch.longest <= budget else self._sum(batch, self._with(layer, budget))  # else nothing changes
            for batch, before in zip(self._batches, self._sums, strict=True)
        ]
        self._tried[layer, budget] = sums
        return self._mean(sums)

    def accept(self, layer: int, budget: int) -> None:
        if (layer, budget) not in self._tried:
            self.loss_with(layer, budget)
        self._sums = self._tried[layer, budget]
        self.loss, self.budgets, self._tried = self._mean(self._sums), self._with(layer, budget), {}

    def _sum(self, batch: Batch, budgets: tuple[int, ...]) -> float:
        self._runs += len(budgets)
        with torch.inference_mode():
            return batch_loss(self._model, batch, Budgets(budgets), self._policy)


def make_trials(
    model: LanguageModel, batches: Sequence[Batch], budgets: Sequence[int], policy: str | Policy, team: Team
) -> AnyTrials:
    """Trials that cost as little as the model allows."""
    kind: type[AnyTrials] = Trials if isinstance(model, LayeredModel) else WholeTrials
    return kind(model, batches, budgets, policy, team)
