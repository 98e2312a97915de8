"""Times as ratios: rivals run in turn in one process, so that what the machine does meanwhile hits all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


def seconds(rivals: dict[Name, Callable[[], object]], repeats: int) -> dict[Name, list[float]]:
    """The seconds of each rival, over rounds in which each runs once; a first round is for warming up."""
    found: dict[Name, list[float]] = {name: [] for name in rivals}
    for turn in range(repeats + 1):
        for name, run in rivals.items():
            began = time.perf_counter()
            run()
            if turn:
                found[name].append(time.perf_counter() - began)
    return found


def medians(rivals: dict[Name, Callable[[], object]], repeats: int) -> dict[Name, float]:
    """The median seconds of each rival; see `seconds`."""
    return {name: statistics.median(found) for name, found in seconds(rivals, repeats).items()}
