"""The record of a search, as `selattn prune` writes it."""

from __future__ import annotations

from dataclasses import dataclass

from selattn.evaluation.searches import Step
from selattn.evaluation.text import Text
from selattn.pruning.search import Procedure


@dataclass(frozen=True)
class Counts:
    """Of the two sets: rows, or tokens that were predicted."""

    search: int
    report: int


@dataclass(frozen=True, kw_only=True)
class SearchRecord:
    """What was searched, and what was found.

    Attributes:
        model: as the user wrote it.
        training_seed: that the model was trained with; None if that is not known.
        until: where the search was to stop, as the user wrote it.
        policy: who leaves when a layer is full.
        procedure: how the search proceeds.
        text: what was searched on.
        report_text: another text that was reported on; None for other rows of the same.
        rows: of both sets.
        processes: that shared the work.
        budgets: K_l that were chosen.
        iteration: of the path, whose budgets these are.
        memory_factor: layers * N / sum of K_l.
        at_floor: whether the search ended because no layer could give more.
        search_loss: with these budgets on the search set.
        search_limit: the largest loss that was allowed there; None without such a threshold.
        search_baseline: the loss of the baseline there; None without one.
        report: losses on the report set by name: `unpruned`, `pruned`, `baseline` if there is one.
        tokens: that were predicted, of both sets.
        path: all iterations.
    """

    model: str
    training_seed: int | None = None
    until: list[str]
    policy: str
    procedure: Procedure
    text: Text
    report_text: Text | None = None
    rows: Counts
    processes: int = 1
    budgets: tuple[int, ...]
    iteration: int
    memory_factor: float
    at_floor: bool
    search_loss: float
    search_limit: float | None
    search_baseline: float | None = None
    report: dict[str, float]
    tokens: Counts
    path: list[Step]
