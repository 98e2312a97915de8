"""The tables of `selattn eval`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from selattn.evaluation.results import Comparison, Evaluated, Tradeoff


def show_files(console: Console, **files: Path | None) -> None:
    """Where they are, of those that were written: `recorded=...`, `drawn=...`."""
    for what, file in files.items():
        if file:
            console.print(f"{what} in {file}", soft_wrap=True)


def show_comparison(found: Comparison, console: Console) -> None:
    """Tables with a line for each model."""
    from rich.table import Table

    first = found.models[0]
    table = Table(title="models", title_justify="left")
    table.add_column("model", overflow="fold")
    for heading in (*first.text, "KV factor"):
        table.add_column(heading, justify="right")
    if first.decoding is not None:
        for heading in ("cache bytes", "of a whole one", "tokens/s"):
            table.add_column(heading, justify="right")
    for one in found.models:
        cells = [f"{text.loss:.4f}" for text in one.text.values()]
        cells.append(f"{one.kv.memory_factor:.2f}")
        if one.decoding is not None:
            low, high = one.decoding.quartiles
            cells += [f"{one.decoding.cache_bytes:,}", f"{one.decoding.full_bytes:,}"]
            cells.append(f"{one.decoding.tokens_per_second:.1f} ({low:.1f} to {high:.1f})")
        table.add_row(one.model, *cells)
    console.print(table)
    if first.tasks:
        show_tasks(found.models, console)


def show_tasks(models: Sequence[Evaluated], console: Console) -> None:
    """A section for each task, with a line for each model."""
    from rich.table import Table

    from selattn.views.words import percent

    table = Table(title="multiple choice, % right ± standard error", title_justify="left")
    table.add_column("task (questions)")
    table.add_column("model", overflow="fold")
    for heading in ("accuracy", "normalised"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in models[0].tasks:
        table.add_section()
        for number, one in enumerate(models):
            task = one.tasks[name]
            label = "" if number else f"{name} ({task.questions:,})"
            cells = (percent(task.acc, task.acc_stderr), percent(task.acc_norm, task.acc_norm_stderr))
            table.add_row(label, one.model, *cells)
    console.print(table)


def show_curves(found: Tradeoff, console: Console) -> None:
    """Where each curve reaches the baseline's loss."""
    from rich.table import Table

    from selattn.views.words import factor

    for text in found.texts:
        table = Table("curve", title=text, title_justify="left")
        for heading in ("largest: loss", "smallest: loss", "memory factor at the baseline's loss"):
            table.add_column(heading, justify="right")
        for curve in found.curves:
            points = sorted(curve.points, key=lambda point: -point.kv_size)
            ends = [f"{point.kv_size:g}: {point.loss[text]:.4f}" for point in (points[0], points[-1])]
            table.add_row(curve.name, *ends, factor(curve.at_the_baselines_loss.get(text)))
        console.print(table)
        if found.baseline is not None:
            console.print(f"baseline {found.baseline.name}: {found.baseline.loss[text]:.4f}", soft_wrap=True)
