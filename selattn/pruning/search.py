"""The greedy search of the paper's section 4, to the letter (`exact`), and one that evaluates less (`lazy`).

    K^0_l = N for all l
    K^t = K^{t-1} - C in layer m, m = argmin_i L(K^{t-1} - C_i), the smallest i among equals

The paper does not say where that ends. By default a layer is a candidate while it keeps at least C tokens after giving
C. With a floor the search goes on from there: when no layer can give C, all give one token at a time, down to the
floor. So up to there the path is that of the paper, and candidates always give the same number of tokens.

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

from selattn.cache import Policy
from selattn.cache.budgets import SMALLEST
from selattn.errors import SelattnError
from selattn.evaluation.losses import Batch
from selattn.models.seam import LanguageModel
from selattn.pruning.folder import Step, Work, chosen
from selattn.pruning.trials import Trials, WholeTrials, make_trials
from selattn.pruning.until import Until
from selattn.utils.distributed import Team
from selattn.utils.progress import Progress

STEP = 8  # C


@dataclass(frozen=True)
class Procedure:
    """How a search proceeds.

    Args:
        context: N.
        step: C, the tokens that a layer gives at a time.
        floor: the tokens that every layer keeps, to be reached exactly; None ends the search when no layer can give C
            and keep C.
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
        if self.context <= self.smallest:
            least = f"{self.step} tokens and keep {self._kept}" if self.floor is None else f"any and keep {self.floor}"
            raise SelattnError(f"with a context of {self.context} no layer can give {least}: choose less")

    @property
    def _kept(self) -> int:
        """What a layer that gives C must keep."""
        return max(SMALLEST, self.step, self.floor or 0)

    @property
    def _times(self) -> int:
        """How often a layer gives C."""
        return max(0, self.context - self._kept) // self.step

    @property
    def smallest(self) -> int:
        """What a layer keeps when it can give no more."""
        return self.context - self._times * self.step if self.floor is None else self.floor

    def iterations(self, layers: int, tokens: float = 0) -> int:
        """How many there are until sum of K_l is at most `tokens`, or no layer can give more."""
        whole, coarse = layers * self.context, layers * self._times
        needed = math.ceil((whole - tokens) / self.step)
        if needed <= coarse:
            return max(0, needed)
        left = whole - coarse * self.step
        return coarse + math.ceil(left - max(tokens, layers * self.smallest))

    def gives(self, budgets: Sequence[int]) -> int:
        """The tokens that a layer gives in the next iteration."""
        return self.step if max(budgets) - self.step >= self._kept else 1

    def candidates(self, budgets: Sequence[int]) -> list[int]:
        """The layers that can give them."""
        gives = self.gives(budgets)
        least = self._kept if gives == self.step else self.smallest
        return [layer for layer, k in enumerate(budgets) if k - gives >= least]


def first_step(trials: Trials | WholeTrials) -> Step:
    """The step before any budget has shrunk, iteration 0."""
    return Step(0, None, trials.budgets, trials.loss, 1.0, {}, Work(trials.evaluations, 0.0))


def steps(trials: Trials | WholeTrials, procedure: Procedure, past: Sequence[Step]) -> Iterator[Step]:
    """The iterations after `past`, whose last one `trials` must stand at, one by one until no layer can give more."""
    began, before = time.monotonic(), past[-1].work
    worked = before.layer_evaluations - trials.evaluations  # a resumed search has its first pass again
    bounds = _bounds(past, procedure)
    for iteration in range(len(past), procedure.iterations(len(trials.budgets)) + 1):
        candidates, gives = procedure.candidates(trials.budgets), procedure.gives(trials.budgets)
        if procedure.lazy:
            layer, tried = _lazy(trials, candidates, gives, bounds[gives])
        else:
            layer, tried = _exact(trials, candidates, gives)
        trials.accept(layer, trials.budgets[layer] - gives)
        factor = len(trials.budgets) * procedure.context / sum(trials.budgets)
        work = Work(worked + trials.evaluations, before.seconds + time.monotonic() - began)
        yield Step(iteration, layer, trials.budgets, trials.loss, factor, tried, work)


def _exact(trials: Trials | WholeTrials, candidates: Sequence[int], gives: int) -> tuple[int, dict[int, float]]:
    """Every candidate is evaluated."""
    tried = {layer: trials.loss_with(layer, trials.budgets[layer] - gives) for layer in candidates}
    return min(candidates, key=lambda layer: (tried[layer], layer)), tried


def _lazy(
    trials: Trials | WholeTrials, candidates: Sequence[int], gives: int, bounds: dict[int, float]
) -> tuple[int, dict[int, float]]:
    """Candidates are evaluated in the order of their bounds, until an evaluated one is the smallest."""
    tried: dict[int, float] = {}
    while True:
        layer = min(candidates, key=lambda layer: (bounds.get(layer, -math.inf), layer))
        if layer in tried:
            return layer, tried
        tried[layer] = trials.loss_with(layer, trials.budgets[layer] - gives)
        bounds[layer] = tried[layer] - trials.loss


def _bounds(past: Sequence[Step], procedure: Procedure) -> dict[int, dict[int, float]]:
    """The increase of each candidate when it was last evaluated, as an uninterrupted search would have it.

    By the number of tokens given: what C tokens cost is no lower bound of what one token costs.
    """
    bounds: dict[int, dict[int, float]] = {procedure.step: {}, 1: {}}
    for before, step in itertools.pairwise(past):
        gives = procedure.gives(before.budgets)
        bounds[gives] |= {layer: loss - before.loss for layer, loss in step.tried.items()}
    return bounds


def shown(step: Step) -> str:
    """The factor, the loss, and the budgets if they are few."""
    budgets = f"  K {' '.join(map(str, step.budgets))}" if len(step.budgets) <= 12 else ""
    return f"{step.factor:.2f}x less  loss {step.loss:.4f}{budgets}"


def search_rows(
    model: LanguageModel,
    batches: Sequence[Batch],
    until: Until,
    procedure: Procedure,
    *,
    policy: str | Policy = "selective",
    progress: Progress | None = None,
) -> tuple[int, list[Step]]:
    """Search on rows at hand, with nothing written: the last iteration that meets the threshold, and the path.

    Args:
        model: in evaluation mode.
        batches: what is searched on.
        until: where the search stops; the loss of a baseline has to be given as `loss`.
        procedure: how it proceeds.
        policy: who leaves when a layer is full.
        progress: is told how it proceeds; None shows nothing.
    """
    layers = model.description.layers
    until.check_size(layers, procedure.context, procedure.smallest)
    trials = make_trials(model, batches, (procedure.context,) * layers, policy, Team())
    path = [first_step(trials)]
    until.check_loss(path[0].loss)
    progress = progress or Progress()
    progress.begin(procedure.iterations(layers), "iteration", sure=False)
    for step in steps(trials, procedure, past=tuple(path)):
        path.append(step)
        progress.advance(1, shown(step))
        if chosen([path[0], step], until, procedure.context)[1]:
            break
    progress.end()
    return chosen(path, until, procedure.context)[0], path
