"""The figure of a search for budgets, from its record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from selattn.evaluation.searches import Step
from selattn.pruning.record import SearchRecord
from selattn.utils.records import as_body
from selattn.views.plot.style import new_figure, styled
from selattn.views.search_path import panels_of_path


def search(record: SearchRecord | Mapping[str, Any], title: str | None = None) -> Figure:
    """Loss against the memory factor, and below it K of each layer, from a record of `selattn prune`."""
    found = record if isinstance(record, SearchRecord) else as_body(record, SearchRecord)
    best = found.path[found.iteration]
    return path_of_search(found.path, best, found.search_limit, title or f"{found.model}, {found.policy}")


@styled
def path_of_search(path: Sequence[Step], best: Step, limit: float | None = None, title: str = "") -> Figure:
    """The same, of the iterations themselves: `best` is the one that was chosen, `limit` the largest loss allowed."""
    figure = new_figure(7.0, 5.2)
    panels_of_path(figure, path, best, math.inf if limit is None else limit, title)
    return figure
