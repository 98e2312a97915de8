"""What is shown while something takes long: one line in a terminal, in one style, and nothing where there is none.

Functions that take long do not show anything. They have an argument `progress`, a function that is told what is done
and how much of it: `progress("reading", 3, 10)`; the total is None where it is not known. `ProgressLines` is one for
the command line.
"""

from __future__ import annotations

from collections.abc import Callable
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

Progress = Callable[[str, int, int | None], None]


def nothing(what: str, done: int, total: int | None) -> None:
    """A progress view that shows nothing."""


def counting(progress: Progress, what: str, total: int) -> Callable[[int], None]:
    """A function that is told how much more is done, and tells `progress` how much that makes."""
    done = 0

    def tick(more: int) -> None:
        nonlocal done
        done += more
        progress(what, done, total)

    return tick


class ProgressLine:
    """`title  12/100  ━━━━  text  left 0:00:10`; a spinner and the time so far where the end is not known.

    Args:
        title: what is being done.
        total: how much there is to do; None if that is not known.
        completed: what was done before.
        shown: False shows nothing, in a terminal either.
        left: what stands before the time that is left.
        keep: leave the line there at the end, rather than remove it.
        console: where it is shown; None for standard error.
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
        """Show it; `with` does that, too."""
        self._bar.start()
        return self

    __enter__ = start

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Show it no longer, or leave it as it is."""
        self.close()

    def close(self) -> None:
        """The same; called again it does nothing."""
        self._bar.stop()

    def advance(self, by: float = 1) -> None:
        """So much more is done."""
        self._bar.advance(self._task, by)

    def update(self, completed: float | None = None, text: str | None = None, title: str | None = None) -> None:
        """So much is done; what has been found so far; what is being done now."""
        self._bar.update(self._task, completed=completed, description=title)
        if text is not None:
            self._bar.update(self._task, text=text)


class ProgressLines:
    """A `progress` for the command line: a `ProgressLine` for each thing that is done, one after another.

    Args:
        shown: False shows nothing.
    """

    def __init__(self, shown: bool = True) -> None:
        self._shown, self._what = shown, ""
        self._line: ProgressLine | None = None

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """So much of it is done; all of it, and the line goes."""
        if self._line is None or what != self._what:
            self.close()
            self._what, self._line = what, ProgressLine(what, total, shown=self._shown).start()
        self._line.update(done)
        if done == total:
            self.close()

    def close(self) -> None:
        """Nothing is done any more."""
        if self._line is not None:
            self._line.close()
            self._line = None
