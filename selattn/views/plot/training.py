"""Figures of one training run, from its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from selattn.errors import SelattnError
from selattn.views.figure import COLORS, MARKERS, shades
from selattn.views.plot.style import new_figure, styled

Record = Mapping[str, Any]


@styled
def losses_of_log(log: Sequence[Record], title: str | None = None) -> Figure:
    """The loss over the steps: of the training batches, and of each set that is held out."""
    trained = [(record["step"], record["loss"]) for record in log if "loss" in record]
    sets: dict[str, list[tuple[int, float]]] = {}
    for record in log:
        for name, found in record.get("evaluation", {}).items():
            sets.setdefault(name, []).append((record["step"], found["loss"]))
    if not trained and not sets:
        raise SelattnError("this log has no losses yet: let the run take some steps")
    figure = new_figure(6.4, 3.6)
    axes = figure.subplots()
    if trained:
        axes.plot(*zip(*trained, strict=True), color="0.6", linewidth=0.9, label="training")
    for number, (name, points) in enumerate(sets.items()):
        style: dict[str, Any] = {"color": COLORS[number], "marker": MARKERS[number], "markersize": 4, "linewidth": 1.3}
        axes.plot(*zip(*points, strict=True), label=name.replace("_", " "), **style)
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per token")
    _finish(axes, title)
    axes.legend(frameon=False)
    return figure


@styled
def kept_by_layer(log: Sequence[Record], title: str | None = None) -> Figure:
    """The share of a sequence that each layer keeps, over the steps; 1 is all of it, as in standard attention."""
    found = [(record["step"], record["kept"]) for record in log if record.get("kept")]
    if not found:
        raise SelattnError("this log does not say what layers keep: no layer of the model selects")
    figure = new_figure(6.4, 3.2)
    axes = figure.subplots()
    layers = [layer for layer, share in enumerate(found[0][1]) if share is not None]
    for layer, shade in zip(layers, shades(len(layers)), strict=True):
        points = [(step, kept[layer]) for step, kept in found]
        axes.plot(*zip(*points, strict=True), color=shade, linewidth=1.3, label=str(layer))
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("step")
    axes.set_ylabel("kept, share of the sequence")
    _finish(axes, title)
    figure.legend(loc="outside right upper", title="layer", frameon=False, ncols=-(-len(layers) // 14), fontsize=8)
    return figure


def _finish(axes: Any, title: str | None) -> None:
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_title(title or "", loc="left", fontsize=9, weight="bold")
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
