"""The tables of `selattn eval`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from selattn.evaluation.results import Comparison, Tradeoff


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
        from selattn.views.reports import tasks_table

        console.print(tasks_table(found.models).rich())


def show_curves(found: Tradeoff, console: Console) -> None:
    """Where each curve reaches the baseline's loss."""
    from selattn.views.reports import ends_table

    for text in found.texts:
        console.print(ends_table(found, text).rich())
        if found.baseline is not None:
            console.print(f"baseline {found.baseline.name}: {found.baseline.loss[text]:.4f}", soft_wrap=True)
