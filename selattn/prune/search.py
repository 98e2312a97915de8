"""The greedy search of the paper's section 4, to the letter (`exact`), and one that evaluates less (`lazy`).

    K^0_l = N for all l
    K^t = K^{t-1} - C in layer m, m = argmin_i L(K^{t-1} - C_i), the smallest i among equals

A layer is a candidate while it can keep at least `floor` tokens after giving C; the paper does not say where that ends.

Lazy. The increase of the loss that a candidate caused when it was last evaluated is kept, and taken for a lower bound
of what it would cause now: fewer tokens elsewhere, or in the same layer, make what is left more valuable. The candidate
with the smallest bound is evaluated; if it is still the smallest, it wins, otherwise the next one is looked at. Where
increases only ever grow this is the exact search; where they do not, a candidate that became cheaper is found late.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from selattn.cache.budgets import SMALLEST
from selattn.errors import SelattnError
from selattn.prune.path import Step
from selattn.prune.trials import Trials

STEP = 8  # C


@dataclass(frozen=True)
class Procedure:
    """How a search proceeds.

    Args:
        context: N.
        step: C, the tokens that a layer gives at a time.
        floor: the tokens that every layer keeps; None is C.
        lazy: evaluate only candidates that can still win.
    """

    context: int
    step: int = STEP
    floor: int | None = None
    lazy: bool = False

    def __post_init__(self) -> None:
        if self.step < 1:
            raise SelattnError(f"a layer must give at least 1 token at a time, not {self.step}")
        if self.floor is not None and self.floor < SMALLEST:
            raise SelattnError(f"a layer must keep at least {SMALLEST} tokens, not {self.floor}")
        if self.context - self.step < self.least:
            raise SelattnError(f"with a context of {self.context} no layer can give {self.step} tokens: --step is less")

    @property
    def least(self) -> int:
        """The floor of every layer."""
        return max(SMALLEST, self.step) if self.floor is None else self.floor

    @property
    def smallest(self) -> int:
        """What a layer keeps when it can give no more."""
        return self.context - (self.context - self.least) // self.step * self.step

    def iterations(self, layers: int) -> int:
        """How many there are until no layer can give more."""
        return layers * ((self.context - self.least) // self.step)

    def candidates(self, budgets: Sequence[int]) -> list[int]:
        """The layers that can give C tokens."""
        return [layer for layer, k in enumerate(budgets) if k - self.step >= self.least]


def first_step(trials: Trials) -> Step:
    """Iteration 0."""
    return Step(0, None, trials.budgets, trials.loss, 1.0, {}, {"layer_evaluations": trials.evaluations, "seconds": 0})


def steps(trials: Trials, procedure: Procedure, past: Sequence[Step]) -> Iterator[Step]:
    """The iterations after `past`, whose last one `trials` must stand at, one by one until no layer can give more."""
    began, before = time.monotonic(), past[-1].work
    worked = before["layer_evaluations"] - trials.evaluations  # a resumed search has its first pass again
    bounds = _bounds(past) if procedure.lazy else None
    for iteration in range(len(past), procedure.iterations(len(trials.budgets)) + 1):
        candidates = procedure.candidates(trials.budgets)
        if bounds is None:
            layer, tried = _exact(trials, candidates, procedure.step)
        else:
            layer, tried = _lazy(trials, candidates, procedure.step, bounds)
        trials.accept(layer, trials.budgets[layer] - procedure.step)
        factor = len(trials.budgets) * procedure.context / sum(trials.budgets)
        work = {
            "layer_evaluations": worked + trials.evaluations,
            "seconds": before["seconds"] + time.monotonic() - began,
        }
        yield Step(iteration, layer, trials.budgets, trials.loss, factor, tried, work)


def _exact(trials: Trials, candidates: Sequence[int], step: int) -> tuple[int, dict[int, float]]:
    """Every candidate is evaluated."""
    tried = {layer: trials.loss_with(layer, trials.budgets[layer] - step) for layer in candidates}
    return min(candidates, key=lambda layer: (tried[layer], layer)), tried


def _lazy(
    trials: Trials, candidates: Sequence[int], step: int, bounds: dict[int, float]
) -> tuple[int, dict[int, float]]:
    """Candidates are evaluated in the order of their bounds, until an evaluated one is the smallest."""
    tried: dict[int, float] = {}
    while True:
        layer = min(candidates, key=lambda layer: (bounds.get(layer, -math.inf), layer))
        if layer in tried:
            return layer, tried
        tried[layer] = trials.loss_with(layer, trials.budgets[layer] - step)
        bounds[layer] = tried[layer] - trials.loss


def _bounds(past: Sequence[Step]) -> dict[int, float]:
    """The increase of each candidate when it was last evaluated, as an uninterrupted search would have it."""
    bounds: dict[int, float] = {}
    for before, step in itertools.pairwise(past):
        bounds.update({layer: loss - before.loss for layer, loss in step.tried.items()})
    return bounds
