"""A bar over rows of text, in a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def rows_bar(title: str, total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told how many rows have been done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("[dim]left[/]"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda rows: bar.advance(task, rows)
