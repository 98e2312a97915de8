"""The trade-off: log-perplexity against KV size, along a search, for budgets of one size, or for a model as it is.

On the command line a curve is

    MODEL@SEARCH          along the path of a search (its folder)
    MODEL@sizes:POLICY    the same budget in every layer, for each of the sizes
    MODEL                 one point: what its kinds of attention must hold
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from selattn.cache import Budgets, import_policy
from selattn.cache.budgets import SMALLEST
from selattn.errors import SelattnError
from selattn.evaluation.batches import Batch
from selattn.evaluation.kv_size import kv_size
from selattn.evaluation.losses import log_perplexity
from selattn.models.evicting import check_selects
from selattn.models.loading import Loaded, load
from selattn.models.seam import Description, LanguageModel
from selattn.utils.distributed import Team

SIZES = "sizes"


@dataclass(frozen=True)
class Curve:
    """A line of the figure.

    Attributes:
        name: what it is called in the figure.
        model: as the user wrote it.
        loaded: the model.
        policy: who leaves; None for the model's own.
        search: the folder of a search whose path is followed.
        sizes: whether the budgets are the same in every layer.
    """

    name: str
    model: str
    loaded: Loaded
    policy: str | None = None
    search: Path | None = None
    sizes: bool = False

    @classmethod
    def parse(cls, text: str) -> Curve:
        """From the command line; NAME=... in front gives a name of one's own."""
        label, equals, rest = text.partition("=")
        name, text = (label, rest) if equals else (text, text)
        if not name:
            raise SelattnError(f"={text} gives a curve no name: write NAME={text}, or {text} alone")
        model, at, how = text.rpartition("@")
        if not at:
            return cls(name, text, load(text))
        what, _, policy = how.partition(":") if how.startswith(SIZES) else (how, "", "")
        if how == f"{SIZES}:":
            raise SelattnError(f"{text!r} ends with a colon: write the policy behind it, or leave it out")
        if policy and not import_policy(policy).evicts:
            raise SelattnError(f"the policy {policy!r} drops nothing, whatever the sizes: write {model} alone")
        if what == SIZES:
            found = load(model)
            about = found.description
            check_selects(Budgets(SMALLEST), import_policy(policy or about.policy), about.selects)
            return cls(name, model, found, policy or None, sizes=True)
        path = Path(what).expanduser()
        if not path.is_dir():
            raise SelattnError(
                f"{what} is not the folder of a search; for one budget in all layers write {SIZES}:POLICY"
            )
        return cls(name, model, load(model), search=path)


@dataclass(frozen=True)
class Point:
    """A point of a curve, as a record has it.

    Attributes:
        kv_size: tokens that a layer holds, a mean over the layers.
        memory_factor: N / kv_size.
        held: by each layer.
        read: by a query of each layer.
        budgets: K_l; None for a model as it is.
        loss: log-perplexity by the name of the text.
    """

    kv_size: float
    memory_factor: float
    held: tuple[int, ...]
    read: tuple[int, ...]
    budgets: tuple[int, ...] | None
    loss: dict[str, float]

    @classmethod
    def make(
        cls, model: Description, context: int, budgets: Budgets | None, policy: str | None, loss: dict[str, float]
    ) -> Point:
        """Of a model with budgets, and what `measure` found."""
        size = kv_size(model, context, budgets, policy)
        each = None if budgets is None else budgets.for_layers(model.layers)
        return cls(size.mean, size.factor, size.held, size.read, each, loss)


def nearest(paths: Sequence[tuple[int, ...]], sizes: Iterable[float]) -> list[tuple[int, ...]]:
    """Of the budgets of a path those whose mean is nearest to each size, the largest first, each once."""

    def distance(budgets: tuple[int, ...], size: float) -> float:
        return abs(math.log(sum(budgets) / len(budgets) / size))

    chosen = {min(paths, key=partial(distance, size=size)) for size in sizes}
    return sorted(chosen, key=lambda k: -sum(k))


def measure(
    model: LanguageModel,
    texts: Mapping[str, Sequence[Batch]],
    budgets: Budgets | None,
    policy: str | None,
    team: Team,
    tick: Callable[[int], None] | None = None,
) -> dict[str, float]:
    """The losses of a point, by the name of the text; `tick` gets the number of rows after each batch."""
    return {name: log_perplexity(model, batches, budgets, policy, team, tick) for name, batches in texts.items()}


def halves(context: int) -> list[int]:
    """The sizes at which curves are measured unless others are asked for: N, N / 2, ... down to the smallest budget."""
    sizes = [context]
    while sizes[-1] // 2 >= SMALLEST:
        sizes.append(sizes[-1] // 2)
    return sizes


@dataclass(frozen=True)
class Reached:
    """Where a curve reaches a loss.

    Attributes:
        size: KV size.
        at_most: whether the curve ends there with a smaller loss, so that the true size is smaller, too.
    """

    size: float
    at_most: bool


def size_at(points: Iterable[tuple[float, float]], loss: float) -> Reached | None:
    """The KV size at which a curve, (size, loss) by point, reaches a loss: between points log(size) is interpolated.

    Going from the largest size down, it is where the loss first exceeds the wanted one. None if it does already at the
    largest; the smallest size if it never does. A loss that is not a number counts as larger than every other.
    """
    ordered = sorted(points, key=lambda point: -point[0])
    limit = loss * (1 + 1e-6)  # budgets that drop nothing give the baseline's own loss, but for rounding
    if not ordered[0][1] <= limit:
        return None
    for (larger, low), (smaller, high) in itertools.pairwise(ordered):
        if not high <= limit:
            share = max(0.0, loss - low) / (high - low) if math.isfinite(high) else 0.0
            return Reached(larger ** (1 - share) * smaller**share, at_most=False)
    return Reached(ordered[-1][0], at_most=True)


@dataclass(frozen=True)
class AtLoss:
    """Where a curve reaches the baseline's loss, as a record has it.

    Attributes:
        kv_size: there.
        memory_factor: N / kv_size.
        at_least: whether the curve ends there with a smaller loss, so that the true factor is larger.
    """

    kv_size: float
    memory_factor: float
    at_least: bool


def at_losses(points: Sequence[Point], losses: Mapping[str, float], context: int) -> dict[str, AtLoss | None]:
    """Where the points of a curve reach the loss of each text; None if they do not."""
    found = {}
    for text, loss in losses.items():
        reached = size_at([(point.kv_size, point.loss[text]) for point in points], loss)
        found[text] = None if reached is None else AtLoss(reached.size, context / reached.size, reached.at_most)
    return found
