"""The table of `selattn convert`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from selattn.conversion import Converted


def draw(found: Converted, console: Console) -> None:
    """The losses side by side, and where the model is."""
    import math

    from rich.table import Table

    from selattn.conversion.record import LINES, ORIGINAL
    from selattn.training.display import shares

    record = found.record
    assert record is not None
    table = Table("", "loss", "perplexity", "above the original")
    for column in table.columns[1:]:
        column.justify = "right"
    for key, line in LINES.items():
        if key in record.losses:
            loss = record.losses[key]
            table.add_row(line, f"{loss:.4f}", f"{math.exp(loss):.3f}", f"{loss - record.losses[ORIGINAL]:+.4f}")
    console.print(table)
    if record.kept:
        console.print(f"kept by layer, of all tokens: {shares(record.kept)}")
    if record.budgeted is not None:
        told = record.budgeted
        factor = f"[bold]{told.memory_factor:.2f} times less memory[/]"
        console.print(f"{factor}: K = {list(told.budgets)} by the policy {told.policy}, in its config", soft_wrap=True)
    rows = f"{record.tokens:,} tokens; {record.rows:,} other rows compared"
    console.print(f"{rows}; the model is {found.folder}", soft_wrap=True)
