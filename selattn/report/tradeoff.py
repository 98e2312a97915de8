"""The figure of the trade-off: log-perplexity against KV size, one line for each curve of a record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from selattn.report.figure import COLOURS, save_figure


def draw_tradeoff(path: str | Path, record: dict[str, Any]) -> Path:
    """One panel for each text of the record of `selattn eval --curve`, smaller caches to the right."""
    texts = list(record["texts"])

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, len(texts), squeeze=False)[0]
        for text, axes in zip(texts, panels, strict=True):
            for number, curve in enumerate(record["curves"]):
                points = sorted(curve["points"], key=lambda point: -point["kv_size"])
                sizes = [point["kv_size"] for point in points]
                losses = [point["loss"][text] for point in points]
                style = {"color": COLOURS[number % len(COLOURS)], "label": curve["name"]}
                axes.plot(
                    sizes, losses, marker="o" if len(points) > 1 else "s", markersize=3 + (len(points) == 1), **style
                )
            if record["baseline"] is not None:
                base = record["baseline"]
                axes.axhline(base["loss"][text], color="0.5", linestyle=":", label=f"{base['name']}, whole cache")
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.invert_xaxis()
            axes.set_xlabel("KV size, tokens held by a layer (mean)")
            axes.set_title(text, loc="left", fontsize=9)
        panels[0].set_ylabel("log-perplexity, nats per token")
        panels[0].legend(frameon=False, fontsize=7)

    return save_figure(path, draw, width=4.8 * len(texts) + 1.2, height=4.2)
