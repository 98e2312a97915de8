"""The figure of the trade-off: log-perplexity against KV size, one line for each curve of a record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selattn.errors import SelattnError
from selattn.evaluation.results import Tradeoff
from selattn.utils.records import check_output
from selattn.utils.typed import to_json
from selattn.views.figure import COLORS, MARKERS, plain_powers, save_figure

FORMATS = (".png", ".svg", ".pdf")


def figure_beside(record: Path | None, figure: Path | None) -> Path | None:
    """Where a figure goes: where it is wanted, or beside the record; raises if it cannot go there."""
    path = figure or (None if record is None else record.with_suffix(".png"))
    if path is None:
        return None
    if path.suffix not in FORMATS:
        raise SelattnError(f"--figure must end with {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, not {path}")
    if record is not None and path.absolute() == record.absolute():
        raise SelattnError(f"the figure would take the place of the record {path}: let the record end with .json")
    check_output(path)
    return path


def draw_tradeoff(path: str | Path, found: Tradeoff) -> Path:
    """One panel for each text, smaller caches to the right."""
    record = to_json(found)
    width = max(6.4, 4.8 * len(record["texts"]))
    return save_figure(path, lambda figure: panels_of_tradeoff(figure, record), width=width, height=4.8)


def panels_of_tradeoff(figure: Any, record: Mapping[str, Any]) -> None:
    """Draw the panels on an empty figure.

    Where points have `losses`, those of several seeds, the lines are means, and a band reaches from the smallest to the
    largest.
    """
    texts, context = list(record["texts"]), record["context"]
    panels = figure.subplots(1, len(texts), squeeze=False)[0]
    for text, axes in zip(texts, panels, strict=True):
        for number, curve in enumerate(record["curves"]):
            _draw_curve(axes, curve, text, COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)])
        if record["baseline"] is not None:
            base = record["baseline"]
            axes.axhline(base["loss"][text], color="0.4", linestyle=":", label=f"{base['name']}, whole cache")
        axes.set_xscale("log", base=2)
        axes.invert_xaxis()
        plain_powers(axes.xaxis)
        axes.set_xlabel("KV size: tokens that a layer holds (mean)")
        axes.set_title(text, loc="left", fontsize=9)
        above = axes.secondary_xaxis("top")
        above.set_xlabel("memory factor")
        plain_powers(above.xaxis, "{:.3g}", lambda size: context / size)
    panels[0].set_ylabel("log-perplexity, nats per token")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)


def _draw_curve(axes: Any, curve: Mapping[str, Any], text: str, color: str, marker: str) -> None:
    points = sorted(curve["points"], key=lambda point: -point["kv_size"])
    sizes = [point["kv_size"] for point in points]
    losses = [point["loss"][text] for point in points]
    alone = len(points) == 1
    style = {"color": color, "marker": marker, "markersize": 7 if alone else 4, "linewidth": 1.3}
    axes.plot(sizes, losses, linestyle="none" if alone else "-", label=curve["name"], **style)
    if "losses" in points[0]:
        ends = [(min(point["losses"][text]), max(point["losses"][text])) for point in points]
        if alone:
            axes.plot(sizes * 2, ends[0], color=color, linewidth=1.3)
        else:
            axes.fill_between(sizes, *zip(*ends, strict=True), color=color, alpha=0.13, linewidth=0)
