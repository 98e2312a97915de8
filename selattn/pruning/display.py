"""What a user sees of a search: a bar in a terminal, a line now and then elsewhere, or nothing."""

from __future__ import annotations

import datetime
import time

from rich.console import Console

from selattn.pruning.path import Step
from selattn.utils.progress import ProgressLine

_SECONDS = 10.0  # between two lines


class SearchDisplay:
    """Shows the current factor and loss, and the time left: at most, as a loss threshold can end a search any time."""

    def __init__(self, console: Console | None = None, last: int | None = None) -> None:
        """`last` is the iteration at which the search ends, where that is known beforehand."""
        self.console = console or Console(stderr=True, highlight=False)
        self._last, self._said = last, 0.0
        self._began: tuple[float, int] | None = None  # the time at the first iteration that was seen, and its number
        self._bar: ProgressLine | None = None

    def __call__(self, step: Step, last: int) -> None:
        """An iteration has ended."""
        total = last if self._last is None else min(last, self._last)
        if not self.console.is_terminal:
            self._line(step, total)
            return
        if self._bar is None:
            before = step.iteration - 1
            self._bar = ProgressLine(
                "search", total, completed=before, left=self._left, keep=True, console=self.console
            ).start()
        self._bar.update(step.iteration, shown(step))

    def _line(self, step: Step, total: int) -> None:
        """Now and then."""
        now = time.monotonic()
        first, number = self._began = self._began or (now, step.iteration)
        if now - self._said < _SECONDS:
            return
        self._said = now
        left = ""
        if step.iteration > number:
            seconds = (now - first) / (step.iteration - number) * (total - step.iteration)
            left = f"  {self._left} {datetime.timedelta(seconds=round(seconds))}"
        self.console.print(f"iteration {step.iteration}/{total}  {shown(step)}{left}", soft_wrap=True)

    @property
    def _left(self) -> str:
        return "left at most" if self._last is None else "left"

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()


def shown(step: Step) -> str:
    """The factor, the loss, and the budgets if they are few."""
    budgets = f"  K {' '.join(map(str, step.budgets))}" if len(step.budgets) <= 12 else ""
    return f"{step.factor:.2f}x less  loss {step.loss:.4f}{budgets}"
