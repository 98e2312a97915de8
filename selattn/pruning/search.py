"""The greedy search of the paper's section 4: to the letter (exact), or with fewer evaluations (lazy).

    K^0_l = N for all l
    K^t = K^{t-1} - C in layer m, m = argmin_i L(K^{t-1} - C_i), the smallest i among equals

The paper does not say where that ends. By default a layer is a candidate while it keeps at least C tokens after giving
C. With a floor the search continues from there: when no layer can give C, all give one token at a time, down to the
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from selattn.cache import Budgets, Policy
from selattn.cache.budgets import SMALLEST
from selattn.errors import SelattnError
from selattn.evaluation.losses import Batch
from selattn.models.protocols import LanguageModel
from selattn.pruning.trials import AnyTrials, make_trials
from selattn.utils.distributed import Team
from selattn.utils.progress import Progress

STEP = 8  # C


@dataclass(frozen=True)
class Until:
    """Where a search stops: at the first of several conditions; without any, when no layer can give more.

    Args:
        baseline: the model whose loss on the same text is not to be exceeded, by name; `loss` gets its number.
        tolerance: nats by which the loss may exceed the unpruned model's.
        loss: the largest loss allowed.
        factor: the memory factor wanted, layers * N / sum of K_l.
        tokens: the sum of K_l wanted.
    """

    baseline: str | None = None
    tolerance: float | None = None
    loss: float = math.inf
    factor: float = math.inf
    tokens: int = 0

    def words(self) -> list[str]:
        """The conditions as the command line and records have them."""
        words = [] if self.baseline is None else [f"baseline={self.baseline}"]
        words += [] if self.tolerance is None else [f"tolerance={self.tolerance!r}"]
        words += [f"loss={self.loss!r}"] if self.loss < math.inf else []
        words += [f"factor={self.factor!r}"] if self.factor < math.inf else []
        words += [f"tokens={self.tokens}"] if self.tokens else []
        return words or ["floor"]

    @property
    def by_loss(self) -> bool:
        """Whether a loss can stop the search, so that its end is not known before."""
        return self.baseline is not None or self.tolerance is not None or self.loss < math.inf

    def limit(self, unpruned: float) -> float:
        """The largest loss allowed, given the unpruned one."""
        return self.loss if self.tolerance is None else min(self.loss, unpruned + self.tolerance)

    def reached(self, budgets: Sequence[int], context: int) -> bool:
        """Whether the memory is as small as wanted."""
        total = sum(budgets)
        return total <= self.tokens or len(budgets) * context / total >= self.factor

    def check_size(self, layers: int, context: int, floor: int) -> None:
        """Raise for a memory that no search can reach."""
        least = layers * floor
        if 0 < self.tokens < least:
            raise SelattnError(f"{self.tokens} tokens in all cannot be reached: {layers} layers keep at least {least}")
        most = context / floor
        if most < self.factor < math.inf:
            raise SelattnError(f"a factor of {self.factor:g} cannot be reached: with {floor} tokens it is {most:g}")

    def check_loss(self, unpruned: float) -> None:
        """Raise for a loss that no search can reach."""
        limit = self.limit(unpruned)
        if unpruned > limit:
            of = f" (that of {self.baseline})" if self.baseline else ""
            raise SelattnError(
                f"a loss of at most {limit:.4f}{of} cannot be reached: without pruning the model has {unpruned:.4f} "
                "on the search set"
            )


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
        """The least that a layer keeps after giving C."""
        return max(SMALLEST, self.step, self.floor or 0)

    @property
    def _times(self) -> int:
        """How often a layer gives C."""
        return max(0, self.context - self._kept) // self.step

    @property
    def smallest(self) -> int:
        """The tokens that a layer keeps when it can give no more."""
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


@dataclass(frozen=True)
class Work:
    """The cost of a search so far; a layer evaluation is one layer run over the whole search set."""

    layer_evaluations: float
    seconds: float  # of wall clock


@dataclass(frozen=True)
class Step:
    """One iteration.

    Attributes:
        iteration: 0 is the model with K_l = N in every layer.
        layer: the one that gave tokens; None in iteration 0.
        budgets: K_l after it.
        loss: of the search set, nats per token.
        factor: layers * N / sum of K_l.
        tried: the loss of each candidate that was evaluated, by layer.
        work: since the search began; not part of the result.
    """

    iteration: int
    layer: int | None
    budgets: tuple[int, ...]
    loss: float
    factor: float
    tried: dict[int, float] = field(default_factory=dict)
    work: Work = field(default=Work(0.0, 0.0), compare=False)

    def __post_init__(self) -> None:
        Budgets(self.budgets).for_layers(len(self.budgets))  # the compiled library does not check them


def first_step(trials: AnyTrials) -> Step:
    """The step before any budget has shrunk, iteration 0."""
    return Step(0, None, trials.budgets, trials.loss, 1.0, {}, Work(trials.evaluations, 0.0))


def steps(trials: AnyTrials, procedure: Procedure, past: Sequence[Step]) -> Iterator[Step]:
    """The iterations after `past`, whose last one `trials` must stand at, one by one until no layer can give more."""
    began, before = time.monotonic(), past[-1].work
    worked = before.layer_evaluations - trials.evaluations  # a resumed search runs its first pass again
    bounds = _bounds(past, procedure)
    for iteration in range(len(past), procedure.iterations(len(trials.budgets)) + 1):
        candidates, gives = procedure.candidates(trials.budgets), procedure.gives(trials.budgets)
        if procedure.lazy:
            layer, tried = _lazy(trials, candidates, gives, bounds[gives])
        else:
            tried = {layer: trials.loss_with(layer, trials.budgets[layer] - gives) for layer in candidates}
            layer = min(tried, key=lambda layer: (tried[layer], layer))
        trials.accept(layer, trials.budgets[layer] - gives)
        factor = len(trials.budgets) * procedure.context / sum(trials.budgets)
        work = Work(worked + trials.evaluations, before.seconds + time.monotonic() - began)
        yield Step(iteration, layer, trials.budgets, trials.loss, factor, tried, work)


def _lazy(
    trials: AnyTrials, candidates: Sequence[int], gives: int, bounds: dict[int, float]
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


def chosen(path: Sequence[Step], until: Until, context: int) -> tuple[int, bool]:
    """The last iteration that meets the threshold, and whether the path goes as far as the threshold."""
    limit = until.limit(path[0].loss)
    for step in path:
        if step.loss > limit:
            return step.iteration - 1, True
        if until.reached(step.budgets, context):
            return step.iteration, True
    return path[-1].iteration, False


def follow(
    trials: AnyTrials,
    path: list[Step],
    until: Until,
    procedure: Procedure,
    progress: Progress,
    write: Callable[[Step], None] | None = None,
) -> None:
    """Extend a path as far as the threshold; `write` is called with each iteration before the next one begins."""
    context, layers = procedure.context, len(trials.budgets)
    tokens = 0.0 if until.by_loss else max(until.tokens, layers * context / until.factor)
    title = "iteration" if procedure.lazy else "iteration without --lazy"  # a hint for those who wait
    progress.begin(procedure.iterations(layers, tokens), title, len(path) - 1, sure=not until.by_loss)
    for step in () if chosen(path, until, context)[1] else steps(trials, procedure, past=tuple(path)):
        path.append(step)
        if write is not None:
            write(step)
        budgets = f"  K {' '.join(map(str, step.budgets))}" if len(step.budgets) <= 12 else ""
        progress.advance(1, f"{step.factor:.2f}x less  loss {step.loss:.4f}{budgets}")
        if chosen([path[0], step], until, context)[1]:
            break
    progress.end()


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
        policy: which token is evicted when a layer is full.
        progress: is told how it proceeds; None shows nothing.
    """
    layers = model.description.layers
    until.check_size(layers, procedure.context, procedure.smallest)
    trials = make_trials(model, batches, (procedure.context,) * layers, policy, Team())
    path = [first_step(trials)]
    until.check_loss(path[0].loss)
    follow(trials, path, until, procedure, progress or Progress())
    return chosen(path, until, procedure.context)[0], path
