"""What an experiment is: the models that it needs, how it measures them, and what its record holds."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from matplotlib.figure import Figure

from selattn.training.config import ARCHITECTURE, RunConfig
from selattn.training.identity import training_key
from selattn.training.overrides import override
from selattn.utils.typed import if_any

if TYPE_CHECKING:
    from lab.engine.lab import Lab
    from lab.runs.scales import Scale

SCALES = ("smoke", "laptop", "paper")


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
class Cell:
    """A number of a table.

    Attributes:
        row, column: where it stands.
        values: ours, one for each seed; None where there is none (a run that diverged, a loss that is not reached).
        paper: the paper's; None where it has none.
        digits: after the point.
        percent: whether it is a share.
    """

    row: str
    column: str
    values: tuple[float | None, ...]
    paper: float | None = None
    digits: int = 3
    percent: bool = False


@dataclass(frozen=True)
class Claim:
    """Something that the paper says, or that a reader would ask, and the number that decides it.

    Attributes:
        text: the claim in a sentence.
        values: the deciding number, one for each seed.
        than: what it is held against.
        side: on which side of it the claim holds.
        what: what the number is.
        paper: the paper's number.
        exact: whether one value is enough: nothing about it is random.
        digits: after the point.
        caveat: why the verdict says little, in a few words behind it.
    """

    text: str
    values: tuple[float | None, ...]
    what: str
    than: float = 0.0
    side: Literal["above", "below", "equal"] = "above"
    paper: float | None = None
    exact: bool = False
    digits: int = 3
    caveat: str = ""


@dataclass(frozen=True)
class Found:
    """What an experiment has measured.

    Attributes:
        cells: the table.
        claims: what they say of the paper's claims.
        notes: what a reader has to know.
        details: what a figure needs beside them.
    """

    cells: tuple[Cell, ...] = ()
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class UsedModel:
    """Where a model of a record comes from.

    Attributes:
        name: of the need.
        key: of its training.
        run: its whole configuration.
        data_checksums: of the tokens that it was trained and validated on.
        steps, tokens: that it was trained for.
        evaluation: its last losses on the sets of its run.
        diverged: the step at which the loss was no number any more; None if it ended.
        commit, date, versions, machine: of its training.
    """

    name: str
    key: str
    run: dict[str, Any]
    data_checksums: dict[str, str]
    steps: int
    tokens: int
    evaluation: dict[str, Any]
    diverged: int | None
    commit: str | None
    date: str
    versions: dict[str, str]
    machine: Mapping[str, Any]


@dataclass(frozen=True)
class Reproduction:
    """The record of an experiment at a scale.

    Attributes:
        experiment, paper, sentence: its name, what of the paper it is, and what it is about.
        scale: at which it was run.
        data: what text the models read, in a sentence.
        seeds: of the trainings, in the order of the values.
        cells, claims, notes, details: see `Found`.
        settings: what decides the numbers beside the models: rows, budgets, the text.
        models: that were used.
        earlier: the record that these numbers were taken from, if they were measured by another command.
    """

    experiment: str
    paper: str
    sentence: str
    scale: str
    data: str
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    claims: tuple[Claim, ...]
    notes: tuple[str, ...]
    settings: dict[str, Any]
    models: tuple[UsedModel, ...]
    details: dict[str, Any] = if_any(default_factory=dict)
    earlier: str | None = if_any(default=None)

    @property
    def values(self) -> tuple[str, ...]:
        """What each value of a cell is of: a seed, unless the record says something else, such as a pair of them."""
        return tuple(map(str, self.settings.get("values", self.seeds)))

    def cell(self, row: str, column: str) -> Cell:
        """The number that stands there."""
        return next(cell for cell in self.cells if (cell.row, cell.column) == (row, column))


@dataclass(frozen=True)
class Experiment:
    """A table or a figure.

    Attributes:
        name: on the command line.
        paper: what of the paper it is: "Figure 3, left"; or "open" for what the paper leaves open.
        sentence: what it is about.
        needs: the models that it needs at a scale, for so many seeds, by name.
        evaluate: measures them.
        figure: draws a record, in one figure or in several by name; None for a table alone.
        scales: at which it can be run.
        losses_only: whether it reads nothing of its models but their last losses, which records have, too.
        conclude: from a record with what was measured to one with what follows from it: claims, and cells and notes
            that are worked out. None where `evaluate` gives all of it. So a claim can be put better, or a bound
            mended, without measuring anything again.
    """

    name: str
    paper: str
    sentence: str
    needs: Callable[[Scale, Sequence[int]], dict[str, Need]]
    evaluate: Callable[[Lab], Found]
    figure: Callable[[Reproduction], Figure | dict[str, Figure]] | None = None
    scales: tuple[str, ...] = SCALES
    losses_only: bool = False
    conclude: Callable[[Reproduction], Reproduction] | None = None

    def concluded(self, record: Reproduction) -> Reproduction:
        """The record with what follows from its numbers."""
        return record if self.conclude is None else self.conclude(record)
