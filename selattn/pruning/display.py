"""What a user sees of a search: a bar in a terminal, a line now and then elsewhere, or nothing."""

from __future__ import annotations

import datetime
import time

from rich.console import Console

from selattn.evaluation.searches import Step
from selattn.utils.progress import ProgressLine

_SECONDS = 10.0  # between two lines


class SearchDisplay:
    """Shows the current factor and loss, and the time left: at most, as a loss threshold can end a search any time."""

    def __init__(self, console: Console | None = None, lazy: bool = True) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self._how = "" if lazy else " without --lazy"  # so that whoever waits knows of it
        self._said = 0.0
        self._began: tuple[float, int] | None = None  # the time at the first iteration that was seen, and its number
        self._bar: ProgressLine | None = None

    def __call__(self, step: Step, last: int, sure: bool) -> None:
        """An iteration has ended; `last` is the last one possible, or if that is `sure`, the last one."""
        left = f"left{self._how}" if sure else f"left at most{self._how}"
        if not self.console.is_terminal:
            self._line(step, last, left)
            return
        if self._bar is None:
            before = step.iteration - 1
            self._bar = ProgressLine(
                "search", last, completed=before, left=left, keep=True, console=self.console
            ).start()
        self._bar.update(step.iteration, shown(step))

    def _line(self, step: Step, last: int, left: str) -> None:
        """Print a line unless one was printed a moment ago."""
        now = time.monotonic()
        first, number = self._began = self._began or (now, step.iteration)
        if now - self._said < _SECONDS:
            return
        self._said = now
        ahead = ""
        if step.iteration > number:
            seconds = (now - first) / (step.iteration - number) * (last - step.iteration)
            ahead = f"  {left} {datetime.timedelta(seconds=round(seconds))}"
        self.console.print(f"iteration {step.iteration}/{last}  {shown(step)}{ahead}", soft_wrap=True)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()


def shown(step: Step) -> str:
    """The factor, the loss, and the budgets if they are few."""
    budgets = f"  K {' '.join(map(str, step.budgets))}" if len(step.budgets) <= 12 else ""
    return f"{step.factor:.2f}x less  loss {step.loss:.4f}{budgets}"
