"""An experiment: the trained models that it needs, how it measures them, and what follows from its record."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from lab.engine.records import Measured, Reproduction
from lab.scales import KINDS, MEMORY, SELECTIVE, STANDARD, Scale
from selattn.cli.settings import override
from selattn.training.config import ARCHITECTURE, RunConfig
from selattn.training.record import deciding_settings, training_key
from selattn.utils.typed import flat

if TYPE_CHECKING:
    from lab.engine.lab import Lab

SCALES = ("smoke", "laptop", "paper")
TITLES = {STANDARD: "standard", SELECTIVE: "selective", MEMORY: "selective, memory loss"}
WHO = {  # as the subject of a claim
    STANDARD: "Standard attention",
    SELECTIVE: "Selective attention",
    MEMORY: "Selective attention with the memory loss",
}


@dataclass(frozen=True)
class Need:
    """A trained model that an experiment needs.

    Attributes:
        run: how it is trained.
        after: the model whose weights it begins with; None for new ones.
    """

    run: RunConfig
    after: Need | None = None

    def __post_init__(self) -> None:
        if self.after is not None:  # the architecture is that of the model it begins with
            model = {name: value for name, value in self.run.model.items() if name not in ARCHITECTURE}
            object.__setattr__(self, "run", dataclasses.replace(self.run, model=model))

    def changed(self, settings: Sequence[str]) -> Need:
        """The same with `field=value` set, in the models that it begins with, too."""
        after = None if self.after is None else self.after.changed(settings)
        return Need(override(self.run, settings), after)

    @functools.cached_property
    def key(self) -> str:
        """Of what decides the weights: two needs with the same are one training."""
        return training_key(self.run.to_dict(), None if self.after is None else self.after.key)


@dataclass(frozen=True)
class Experiment:
    """A table or a figure.

    Attributes:
        name: on the command line.
        paper: what of the paper it is: "Figure 3, left"; or "open" for what the paper leaves open.
        sentence: what it is about.
        needs: the models that it needs at a scale and for seeds, by name.
        evaluate: measures them.
        figure: draws a record, in one figure or in several by name; None for a table alone.
        scales: at which it can be run.
        losses_only: whether it reads nothing of its models but their last losses, which records have, too.
        conclude: from a record with what was measured to one with what follows from it: claims, and cells and notes
            that are worked out. None where `evaluate` gives all of it. So a claim can be put better, or a bound
            mended, without measuring anything again.
        by_seed: whether seeds are measured one by one and joined, so that a record can grow by seeds. Then a list in
            the details has an entry for each seed.
        reads: texts by their name on the hub, beside those of its models.
    """

    name: str
    paper: str
    sentence: str
    needs: Callable[[Scale, Sequence[int]], dict[str, Need]]
    evaluate: Callable[[Lab], Measured]
    figure: Callable[[Reproduction], Figure | dict[str, Figure]] | None = None
    scales: tuple[str, ...] = SCALES
    losses_only: bool = False
    conclude: Callable[[Reproduction], Reproduction] | None = None
    by_seed: bool = False
    reads: tuple[str, ...] = ()

    def concluded(self, record: Reproduction) -> Reproduction:
        """The record with what follows from its numbers."""
        return record if self.conclude is None else self.conclude(record)


def trio(
    scale: Scale,
    seeds: Sequence[int],
    positions: str | None = None,
    steps: int | None = None,
    kinds: Sequence[str] = KINDS,
) -> dict[str, Need]:
    """The models that most is measured on: standard, selective, and selective with the memory loss.

    Those of one seed see the same data in the same order. They are the longest runs of a scale unless told otherwise;
    at the laptop scale these are the zoo's, with rotary positions: learned ones give a young selective model the
    recency that its rival lacks.
    """
    runs = {kind: scale.run(kind, positions=positions, steps=steps or scale.long_steps) for kind in kinds}
    return with_seeds(runs, seeds)


def with_seeds(runs: dict[str, RunConfig], seeds: Sequence[int]) -> dict[str, Need]:
    """A need for each run and seed, those of one seed together: that is the order in which they are trained."""
    return {
        of_seed(name, seed): Need(dataclasses.replace(run, seed=seed)) for seed in seeds for name, run in runs.items()
    }


def of_seed(name: str, seed: int | None) -> str:
    """The name of a need with its seed."""
    return name if seed is None else f"{name}, seed {seed}"


def field_of(setting: str) -> str:
    """The field of `field=value`."""
    return setting.partition("=")[0]


def varied(needs: Iterable[Need]) -> set[str]:
    """The settings in which trainings of one seed differ, those that they begin with included, as dotted names.

    Only what decides weights and losses counts; how it is computed (`machine.*`) is not meant to.
    """
    settings = [_settings(each) for need in needs for each in _chain(need)]
    names = {name for each in settings for name in each if not name.startswith("machine.")}
    missing = object()
    return {
        name for name in names if any(each.get(name, missing) != settings[0].get(name, missing) for each in settings)
    }


def changed_beside(need: Need, others: Sequence[Need], settings: Sequence[str]) -> Need:
    """A training that comes up beside others, with what is set in these; where it differs from them it stays as it is.

    So a short continuation stays as short as its experiment says, whatever the steps of the others are set to.
    """
    after = None if need.after is None else changed_beside(need.after, others, settings)
    plain = Need(need.run, None if after is None else others[0])  # its architecture as it is without settings
    own = varied([*others, plain])
    return Need(override(need.run, [setting for setting in settings if field_of(setting) not in own]), after)


def _chain(need: Need) -> Iterator[Need]:
    yield need
    if need.after is not None:
        yield from _chain(need.after)


def _settings(need: Need) -> dict[str, Any]:
    """Leaf by leaf; the architecture is that of the model it begins with."""
    settings = flat(deciding_settings(need.run.to_dict()))
    own = {name: value for name, value in settings if value != {}}  # an empty section is no setting
    before = {} if need.after is None else _settings(need.after)
    return own | {f"model.{name}": before[f"model.{name}"] for name in ARCHITECTURE if f"model.{name}" in before}
