"""What is shown while something takes long: one line in a terminal, in one style, and nothing where there is none."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


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
        self._bar = Progress(*columns, console=console, transient=not keep, expand=total is not None, disable=disable)
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
