"""What a conversion leaves behind beside its model: the losses that have to be compared, on the same rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from selattn.utils.typed import if_any

RECORD = "conversion.json"  # in the folder of the conversion

# The lines of the table, in their order.
ORIGINAL, UNTRAINED, AFTER, PRUNED, CONTROL = "original", "untrained", "after", "pruned", "control"
LINES = {
    ORIGINAL: "the original",
    UNTRAINED: "untrained, at full strength",
    AFTER: "after",
    PRUNED: "after, with budgets",
    CONTROL: "control: as much training, no selection",
}


@dataclass(frozen=True)
class Budgeted:
    """What the search for budgets has found.

    Attributes:
        until: where it was to stop, as `selattn prune` has it.
        budgets: K_l.
        memory_factor: layers * N / sum of K_l.
        at_floor: whether it ended because no layer could give more.
        search_rows: that were searched on; the losses of the record are those of other rows.
        policy: who left when a layer was full.
    """

    until: list[str]
    budgets: tuple[int, ...]
    memory_factor: float
    at_floor: bool
    search_rows: int
    policy: str = "selective"  # which it was before there was a choice


@dataclass(frozen=True)
class ConversionRecord:
    """The record of `selattn convert`.

    Attributes:
        run: the whole configuration, `ConversionRun.to_dict`.
        parameters: of the converted model.
        tokens: that it was trained on.
        rows: of the validation part that the losses are of.
        predicted: tokens of these rows that were predicted.
        losses: nats per token by the keys of `LINES`.
        kept: the fraction of the context that each layer still needs by M, after the training.
        budgeted: what a search found; None without one.
    """

    run: dict[str, Any]
    parameters: int
    tokens: int
    rows: int
    predicted: int
    losses: dict[str, float]
    kept: list[float | None] | None = None
    budgeted: Budgeted | None = if_any(default=None)
