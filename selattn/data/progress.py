"""What is shown on a terminal while text is read: how many documents there will be is not known before the last one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


def counting(name: str, shown: bool) -> Progress:
    """No percentage, but what is done: the task has the fields `documents` and `tokens`."""
    bar = _bar(
        "tokenizing {task.description}: {task.fields[documents]:,} documents, {task.fields[tokens]:,} tokens", shown
    )
    bar.add_task(name, total=None, documents=0, tokens=0)
    return bar


@contextmanager
def working(title: str, shown: bool) -> Iterator[None]:
    """That something is being done, and for how long."""
    with _bar("{task.description}", shown) as bar:
        bar.add_task(title, total=None)
        yield


def _bar(text: str, shown: bool) -> Progress:
    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn(text),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not (shown and console.is_terminal),
    )
