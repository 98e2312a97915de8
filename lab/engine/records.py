"""The record of an experiment: cells with a value for each seed, claims that they decide, models; and verdicts.

A verdict needs 3 seeds that agree, and a standard error of at most a third of the effect: the mean's distance from the
bound.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from selattn.errors import SelattnError
from selattn.training.record import source_name
from selattn.utils.typed import if_any

Values = tuple[float | None, ...]  # one for each seed; None where a seed has none

LEAST = 3  # seeds; fewer are called one run, or two
_EQUAL = 1e-9


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
    values: Values
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
    values: Values
    what: str
    than: float = 0.0
    side: Literal["above", "below", "equal"] = "above"
    paper: float | None = None
    exact: bool = False
    digits: int = 3
    caveat: str = ""


@dataclass(frozen=True)
class Measured:
    """The numbers of an experiment.

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
        earlier: the record that these numbers were taken from, if another command measured them; such records are in
            `results/reproduce/earlier`.
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


def verdict(claim: Claim, scale: str) -> str:
    """In a few words: holds, fails, too early to tell; of too few seeds which way they point. With the caveat."""
    found = _verdict(claim, scale)
    return f"{found}, {claim.caveat}" if claim.caveat else found


def _verdict(claim: Claim, scale: str) -> str:
    if scale == "smoke" and not claim.exact:
        return "not tested (smoke)"
    known = [value for value in claim.values if value is not None]
    if not known or len(known) < len(claim.values):
        return "not measured" if not known else "too early to tell (a seed is missing)"
    right = [_right(claim, value) for value in known]
    if claim.exact:
        return "holds" if all(right) else "fails"
    if len(known) < LEAST:
        runs = "one run" if len(known) == 1 else f"{len(known)} runs"
        if claim.side != "equal" and all(value == claim.than for value in known):
            return f"{runs}: no difference"
        if len(set(right)) > 1:
            return f"{runs}: they disagree"
        return f"{runs}: {'as claimed' if right[0] else 'against the claim'}"
    if len(set(right)) > 1 or not abs(statistics.fmean(known) - claim.than) > 3 * standard_error(known):
        return "too early to tell"
    return "holds" if right[0] else "fails"


def standard_error(values: Sequence[float]) -> float:
    """Of the mean of at least two values."""
    return statistics.stdev(values) / math.sqrt(len(values))


def _right(claim: Claim, value: float) -> bool:
    if claim.side == "equal":
        return abs(value - claim.than) <= _EQUAL * max(1.0, abs(claim.than))
    return value > claim.than if claim.side == "above" else value < claim.than


def differences(these: Values, those: Values) -> Values:
    """these - those, seed by seed; None where one is missing."""
    return tuple(None if a is None or b is None else a - b for a, b in zip(these, those, strict=True))


def joined(first: Reproduction, second: Reproduction) -> Reproduction:
    """The record of the seeds of two records, whose texts and settings must be the same."""
    names, parts = (first.experiment, first.scale), (_alike(first), _alike(second))
    if names != (second.experiment, second.scale) or parts[0] != parts[1]:
        differ = [name for name in dict.fromkeys([*parts[0], *parts[1]]) if parts[0].get(name) != parts[1].get(name)]
        raise SelattnError(
            f"seeds {_named(first)} and {_named(second)} of {first.experiment} cannot be in one record: they differ in "
            f"{', '.join(differ) or 'the experiment'}"
        )
    both = zip(first.cells, second.cells, strict=True)
    return replace(
        second,
        seeds=first.seeds + second.seeds,
        cells=tuple(replace(b, values=a.values + b.values) for a, b in both),
        models=first.models + second.models,
        details={
            name: first.details[name] + of_second if isinstance(of_second, list) else of_second
            for name, of_second in second.details.items()
        },
    )


def same_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without the folder in which the text lies, for comparing."""
    return {**settings, "source": source_name(settings["source"])}


def _alike(record: Reproduction) -> dict[str, Any]:
    """What must be the same in the records of single seeds."""
    return {
        **same_settings(record.settings),
        "the rows of the table": [(cell.row, cell.column) for cell in record.cells],
        "the training text": {json.dumps(model.data_checksums, sort_keys=True) for model in record.models},
        **{f"details, {name}": value for name, value in record.details.items() if not isinstance(value, list)},
    }


def _named(record: Reproduction) -> str:
    return ", ".join(map(str, record.seeds))
