"""Figure 7: selective attention beside H2O, TOVA and Window+4 at the same KV size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from lab.engine.experiment import Experiment, trio
from lab.engine.lab import Lab
from lab.engine.pruning import ALL, LONG, POLICIES, curve_of, factor_at, nearest_point, tradeoff
from lab.engine.records import Cell, Measured, Reproduction
from selattn.evaluation.tradeoff import Baseline
from selattn.views.plot import tradeoff as draw_tradeoff

_SHOWN = 0.6  # nats above the standard model's loss: what is worse is left out of the figure
_CURVES = ("selective", "memory loss", *POLICIES)


def evaluate(lab: Lab) -> Measured:
    """The loss of every method at the same sizes, on all documents and on long ones."""
    found = [tradeoff(lab, seed) for seed in lab.seeds]
    context = found[0].context
    sizes = [context // 2**k for k in range(1, 8) if context // 2**k >= 4]
    bases = [each.baseline for each in found if each.baseline is not None]
    cells, at = [], {}
    for name in _CURVES:
        points = [curve_of(each, name).points for each in found]
        for text in (ALL, LONG):
            for size in sizes:
                values = tuple(nearest_point(each, size).loss[text] for each in points)
                at[name, text, size] = values
                cells.append(Cell(f"loss, {size} tokens a layer, {text}", name, values))
            factors = tuple(
                factor_at(each, text, base.loss[text], context) for each, base in zip(points, bases, strict=True)
            )
            cells.append(Cell(f"times less memory at the standard loss, {text}", name, factors, digits=1))
    for text in (ALL, LONG):
        losses = tuple(base.loss[text] for base in bases)
        cells.append(Cell(f"loss, {sizes[0]} tokens a layer, {text}", "standard, whole cache", losses))
    return Measured(tuple(cells), details={"tradeoff": _over_seeds(at, sizes, bases, context)})


def conclude(record: Reproduction) -> Reproduction:
    """Nothing is claimed of it: only the selective models have searched budgets."""
    notes = (
        "H2O, TOVA and Window+4 evict from the standard model with the same budget in every layer; selective models "
        "have searched budgets of their own for each layer, of the same mean. So their columns cannot be compared with "
        "each other.",
        "What each selective model saves within a little of its own loss is in the experiment 'efficiency'. Sparse "
        "attention has to be trained: see the experiment 'sparse'.",
    )
    return replace(record, claims=(), notes=notes)


def _over_seeds(
    at: Mapping[tuple[str, str, int], Sequence[float]], sizes: Sequence[int], bases: Sequence[Baseline], context: int
) -> dict[str, Any]:
    """What a figure is drawn from: at each size the mean of the seeds, and all of them."""

    def point(name: str, size: int) -> dict[str, Any]:
        losses = {text: list(at[name, text, size]) for text in (ALL, LONG)}
        return {"kv_size": size, "loss": {text: fmean(each) for text, each in losses.items()}, "losses": losses}

    return {
        "texts": [ALL, LONG],
        "context": context,
        "curves": [{"name": name, "points": [point(name, size) for size in sizes]} for name in _CURVES],
        "baseline": {
            "name": "standard",
            "loss": {text: fmean(base.loss[text] for base in bases) for text in (ALL, LONG)},
        },
    }


def draw(record: Reproduction) -> Figure:
    """Loss against KV size: means over the seeds, and bands from the smallest to the largest."""
    found = record.details["tradeoff"]
    figure = draw_tradeoff(found)
    for axes, text in zip(figure.axes, found["texts"], strict=True):
        axes.set_ylim(top=min(axes.get_ylim()[1], found["baseline"]["loss"][text] + _SHOWN))
    return figure


EXPERIMENTS = (
    Experiment(
        "comparison",
        "Figure 7",
        "selective attention beside H2O, TOVA and Window+4 at the same KV size",
        trio,
        evaluate,
        draw,
        conclude=conclude,
    ),
)
