"""The figure of a search for budgets, from its record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from selattn.pruning.record import SearchRecord
from selattn.report.plot.style import new_figure, styled
from selattn.report.search_path import panels_of_path
from selattn.utils.records import as_body


@styled
def search(record: SearchRecord | Mapping[str, Any], title: str | None = None) -> Figure:
    """Loss against the memory factor, and below it K of each layer, from a record of `selattn prune`."""
    found = record if isinstance(record, SearchRecord) else as_body(record, SearchRecord)
    limit = math.inf if found.search_limit is None else found.search_limit
    figure = new_figure(7.0, 5.2)
    panels_of_path(figure, found.path, found.path[found.iteration], limit, title or f"{found.model}, {found.policy}")
    return figure
