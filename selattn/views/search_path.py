"""The figure of a search: the loss and the budgets along its path."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selattn.pruning import Step
from selattn.views.figure import COLORS, plain_powers, save_figure, shades


def draw_path(path: str | Path, steps: Sequence[Step], best: Step, limit: float = math.inf, title: str = "") -> Path:
    """Loss against the memory factor, and below it K_l of each layer; the chosen budgets are marked."""
    return save_figure(path, lambda figure: panels_of_path(figure, steps, best, limit, title), height=5.2)


def panels_of_path(figure: Any, steps: Sequence[Step], best: Step, limit: float = math.inf, title: str = "") -> None:
    """Draw both panels on an empty figure."""
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    factors = [step.factor for step in steps]
    top.plot(factors, [step.loss for step in steps], color=COLORS[0])
    top.plot([best.factor], [best.loss], "o", color=COLORS[1], label=f"chosen: {best.factor:.1f} times less")
    if limit < math.inf:
        top.axhline(limit, color="0.4", linestyle=":", label=f"threshold {limit:.4f}")
    top.set_ylabel("loss on the search set, nats per token")
    top.legend(frameon=False)
    top.set_title(title, loc="left", fontsize=9, weight="bold")
    layers = len(best.budgets)
    for layer, shade in enumerate(shades(layers)):
        budgets = [step.budgets[layer] for step in steps]
        bottom.step(factors, budgets, where="post", color=shade, linewidth=1.3, label=str(layer))
    bottom.axvline(best.factor, color=COLORS[1], linewidth=0.8, linestyle="--")
    bottom.set_ylabel("K of each layer")
    bottom.set_xlabel("memory factor: layers · N / sum of K")
    bottom.set_xscale("log", base=2)
    bottom.set_yscale("log", base=2)
    plain_powers(bottom.xaxis)
    plain_powers(bottom.yaxis)
    columns = math.ceil(layers / 16)
    handles, labels = bottom.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right lower", title="layer", ncols=columns, fontsize=7, frameon=False)
