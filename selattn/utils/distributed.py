"""Several processes, started by torchrun, that share one evaluation or search.

Each batch of a text is computed whole by one process, as a single process would; only the sums of the batches are
exchanged. They are added without rounding in between, so the result does not depend on the number of processes.
"""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import distributed as dist

from selattn.errors import SelattnError

_T = TypeVar("_T")


def world_size() -> int:
    """How many processes torchrun or accelerate has started; 1 without them."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_size() -> int:
    """How many of them are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def leads() -> bool:
    """Whether this process is the one that writes and shows."""
    return os.environ.get("RANK", "0") == "0"


class Team:
    """This process and the others. Made once in a program; alone unless torchrun says otherwise."""

    def __init__(self) -> None:
        self.size, self.rank = world_size(), int(os.environ.get("RANK", "0"))
        if self.size > 1 and not dist.is_initialized():
            # A few numbers at a time, on any device. One process may be busy with tasks for hours while others wait.
            dist.init_process_group("gloo", timeout=datetime.timedelta(days=7))

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes and shows."""
        return self.rank == 0

    def share(self, items: Sequence[_T]) -> list[_T]:
        """The items that this process computes."""
        return list(items[self.rank :: self.size])

    def total(self, values: Sequence[float]) -> float:
        """The sum of the values of all processes, rounded once."""
        if self.size == 1:
            return math.fsum(values)
        parts: list[list[float]] = [[] for _ in range(self.size)]
        dist.all_gather_object(parts, list(values))
        return math.fsum(value for part in parts for value in part)

    def by_one(self, act: Callable[[], _T]) -> _T:
        """Let the leading process act; all of them return its result, or raise its refusal."""
        if self.size == 1:
            return act()
        box: list[object] = [None, None]
        if self.leads:
            try:
                box[0] = act()
            except SelattnError as error:
                box[1] = str(error)
        dist.broadcast_object_list(box, 0)
        if box[1] is not None:
            raise SelattnError(str(box[1]))
        return box[0]  # type: ignore[return-value]

    def close(self) -> None:
        """End the group of processes."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()
