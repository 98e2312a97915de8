"""Results in words, the same in terminals and in reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selattn.evaluation.curve import AtLoss


def percent(share: float, error: float | None) -> str:
    """With its standard error; a single question has none."""
    return f"{100 * share:.1f}" + ("" if error is None else f" ± {100 * error:.1f}")


def factor(reached: AtLoss | None) -> str:
    """The memory factor at the baseline's loss; a curve that ends below that loss gives a lower bound."""
    return "-" if reached is None else f"{'≥ ' if reached.at_least else ''}{reached.memory_factor:.2f}"


def size(count: int) -> str:
    """Bytes as people say them: 512 bytes, 4.2 kB, 9.4 MB."""
    if count < 1000:
        return f"{count} bytes"
    return f"{count / 1e3:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"


def attention_kind(model: Mapping[str, Any]) -> str:
    """What kind of attention a model has, from the settings of its training: selective, memory loss."""
    kind = " + ".join(dict.fromkeys(str(kind) for kind in model.get("attention", ["selective"])))
    return f"{kind}, memory loss" if model.get("memory_epsilon") else kind
