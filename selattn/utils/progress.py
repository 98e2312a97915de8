"""Progress of long work: a bar in a terminal, lines elsewhere, in one style.

Functions that take long have an argument `progress`: `Progress` shows nothing, `Shown` is for people.
"""

from __future__ import annotations

import datetime
import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar


class Progress:
    """Shows nothing."""

    shows = False

    def begin(
        self,
        total: float | None,
        title: str = "",
        done: float = 0,
        *,
        heading: str = "",
        sure: bool = True,
        every: float = 10.0,
    ) -> None:
        """Work begins; what was shown before ends.

        Args:
            total: how much there is to do; None if that is not known.
            title: of the work, or the unit that is counted.
            done: how much was done before.
            heading: a line above the bar.
            sure: whether the work ends at the total; else the time left is an upper bound.
            every: seconds between two lines, where there is no bar.
        """

    def advance(self, by: float = 1, text: str | None = None) -> None:
        """More is done; `text` is shown beside the count."""

    def say(self, text: str) -> None:
        """Show a line of its own."""

    def end(self) -> None:
        """The work has ended, in whatever way; may be called again."""


class Shown(Progress):
    """A bar in a terminal, which `keep` leaves there at its end; elsewhere a line now and then, if it has a text."""

    shows = True

    def __init__(self, console: Console | None = None, keep: bool = False) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self._keep = keep
        self._line: ProgressLine | None = None
        self._title, self._left = "", ""
        self._total: float | None = None
        self._done = self._every = 0.0
        self._said: float | None = None
        self._began: tuple[float, float] | None = None  # the time of the first line, and what was done by then

    def begin(
        self,
        total: float | None,
        title: str = "",
        done: float = 0,
        *,
        heading: str = "",
        sure: bool = True,
        every: float = 10.0,
    ) -> None:
        self.end()
        self._title, self._total, self._done, self._every = title, total, done, every
        self._left, self._said, self._began = "left" if sure else "left at most", None, None
        if self.console.is_terminal:
            if heading:
                self.console.print(heading, style="bold", markup=False)
            how = {"completed": done, "left": self._left, "keep": self._keep, "console": self.console}
            self._line = ProgressLine(title, total, **how).start()  # type: ignore[arg-type]

    def advance(self, by: float = 1, text: str | None = None) -> None:
        self._done += by
        if self._line is not None:
            self._line.update(self._done, text)
        elif text is not None:
            self._tell(text)

    def _tell(self, text: str) -> None:
        now = time.monotonic()
        first, before = self._began = self._began or (now, self._done)
        if self._said is not None and now - self._said < self._every:
            return
        self._said = now
        of, ahead = "", ""
        if self._total is not None:
            of = f"/{self._total:,.0f}"
            if self._done > before and self._every:
                seconds = (now - first) / (self._done - before) * (self._total - self._done)
                ahead = f"  {self._left} {datetime.timedelta(seconds=round(seconds))}"
        self.say(f"{self._title} {self._done:,.0f}{of}  {text}{ahead}")

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False)

    def end(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


class ProgressLine:
    """`title  12/100  ━━━━  text  left 0:00:10`; a spinner and the time so far where the total is not known.

    Shown only in a terminal, unless `shown` is False. `left` stands before the time that is left; `keep` leaves the
    line there at the end.
    """

    def __init__(
        self,
        title: str,
        total: float | None = None,
        *,
        completed: float = 0,
        shown: bool = True,
        left: str = "left",
        keep: bool = False,
        console: Console | None = None,
    ) -> None:
        console = console or Console(stderr=True, highlight=False)
        name, text = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[text]}")
        columns: tuple[ProgressColumn, ...]
        if total is None:
            columns = (SpinnerColumn(), name, text, TimeElapsedColumn())
        else:
            count = TextColumn("{task.completed:,.0f}/{task.total:,.0f}")
            ahead = (TextColumn(f"[dim]{left}[/]"), TimeRemainingColumn(compact=True, elapsed_when_finished=True))
            columns = (name, count, BarColumn(bar_width=None), text, *ahead)
        disable = not (shown and console.is_terminal)
        self._bar = Bar(*columns, console=console, transient=not keep, expand=total is not None, disable=disable)
        self._task = self._bar.add_task(title, total=total, completed=int(completed), text="")

    def start(self) -> ProgressLine:
        """Show it; `with` does so, too."""
        self._bar.start()
        return self

    __enter__ = start

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End it; may be called again."""
        self._bar.stop()

    def advance(self, by: float = 1) -> None:
        """More is done."""
        self._bar.advance(self._task, by)

    def update(self, completed: float | None = None, text: str | None = None, title: str | None = None) -> None:
        """Set what is done, the text behind the bar, and the title."""
        self._bar.update(self._task, completed=completed, description=title)
        if text is not None:
            self._bar.update(self._task, text=text)
