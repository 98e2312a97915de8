"""Figures in which the text itself is the picture: one token's view of those before it, and what remains of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from selattn.errors import SelattnError
from selattn.report.plot.style import (
    BLUE,
    EM,
    FAINT,
    GREEN,
    INK,
    MONO,
    RED,
    cells,
    check_layers,
    label,
    lines,
    new_figure,
    styled,
)
from selattn.report.trace import Trace

WIDTH = 100  # letters of a line
LINE = 2.0  # the height of a line, in widths of a letter
FONT = 7.5
DARKEST = 0.75  # the strongest blue or green still lets a letter be read


@styled
def tokens(
    trace: Trace, layers: Sequence[int] | None = None, position: int | None = None, title: str | None = None
) -> Figure:
    """What the token at a position sees, layer by layer (the paper's figure 1).

    A red line through a token: the share 1 - e^-F of its odds that masking takes away. Blue behind it: the attention
    that it gets, a mean over the heads, the bluest being the most of all.

    Args:
        trace: of a text.
        layers: counted from 0; all by default.
        position: of the token that looks back; the last by default. It has a frame.
        title: above all; the model's name by default.
    """
    chosen = check_layers(layers, trace.layers)
    at = trace.size - 1 if position is None else position
    if not 0 <= at < trace.size:
        raise SelattnError(f"there is no token {at}: the text has tokens 0 to {trace.size - 1}")
    seen = trace.tokens[: at + 1]
    weights = [trace.weights(layer)[at, : at + 1] for layer in chosen]
    most = max(float(row.max()) for row in weights) or 1.0
    figure, blocks = _blocks(seen, [_layer_title(trace, layer) for layer in chosen], title or trace.model, legend=True)
    for axes, layer, row in zip(blocks, chosen, weights, strict=True):
        masked = 1.0 - np.exp(-np.maximum(trace.F(layer)[at, : at + 1], 0.0))
        for place, (line, column) in enumerate(lines(seen, WIDTH)):
            _behind(
                axes, line, column, seen[place], to_rgba(BLUE, DARKEST * float(row[place]) / most), f"attention {place}"
            )
            gone = float(masked[place])
            _word(axes, line, column, seen[place], INK)
            if gone > 0:
                middle = LINE * (line + 0.5)
                (strike,) = axes.plot(
                    [column - 0.15, column + cells(seen[place]) + 0.15], [middle, middle], solid_capstyle="butt"
                )
                strike.set(color=RED, alpha=gone, linewidth=0.9, zorder=3, gid=f"masking {place}")
            if place == at:
                frame = Rectangle((column - 0.3, LINE * line + 0.12), cells(seen[place]) + 0.6, LINE - 0.24)
                frame.set(fill=False, edgecolor=INK, linewidth=1.0, zorder=4, clip_on=False)
                axes.add_patch(frame)
    _legend(
        figure,
        [
            ("struck through in red: masked; the stronger, the more (1 - e^-F)", RED),
            (f"lit in blue: read; the strongest is {most:.0%} of the attention", BLUE),
            ("framed: the token that looks back", INK),
        ],
    )
    return figure


@styled
def words(trace: Trace, layers: Sequence[int] | None = None, title: str | None = None) -> Figure:
    """The last row of F over the words of the text: what each layer still sees of it, and what is masked.

    The green behind a token is e^-F, what masking leaves of its odds: 1 is the strongest green, and 0 is none.
    """
    chosen = check_layers(layers, trace.layers)
    figure, blocks = _blocks(
        trace.tokens, [_layer_title(trace, layer) for layer in chosen], title or trace.model, legend=True
    )
    for axes, layer in zip(blocks, chosen, strict=True):
        left = np.exp(-np.maximum(trace.F(layer)[-1], 0.0))
        for place, (line, column) in enumerate(lines(trace.tokens, WIDTH)):
            share = float(left[place])
            token = trace.tokens[place]
            _behind(axes, line, column, token, to_rgba(GREEN, DARKEST * share), f"left {place}")
            _word(axes, line, column, token, INK if share > 0.1 else FAINT)
    _legend(
        figure,
        [
            ("green: what the last token still sees (e^-F, the strongest is 1)", GREEN),
            ("grey: masked, e^-F below 0.1", FAINT),
        ],
    )
    return figure


def _layer_title(trace: Trace, layer: int) -> str:
    kind = trace.kinds[layer]
    return f"layer {layer}" if kind == "selective" else f"layer {layer} ({kind} attention)"


def _blocks(tokens: Sequence[str], titles: Sequence[str], title: str, legend: bool) -> tuple[Figure, list[Axes]]:
    """A figure with one block of text for each title, and axes that count letters."""
    places = list(lines(tokens, WIDTH))
    count = places[-1][0] + 1
    letter = EM * FONT / 72  # inches
    wide = WIDTH if count > 1 else max(column + cells(token) for (_, column), token in zip(places, tokens, strict=True))
    wide = max(wide, 62)
    margin, head, foot = 0.15, 0.24, 0.62 if legend else 0.1
    width = wide * letter + 2 * margin
    height = len(titles) * (count * LINE * letter + head) + 0.3 + foot
    figure = new_figure(width, height)
    figure.set_layout_engine("none")
    top = height - 0.3
    figure.text(
        margin / width, (height - 0.2) / height, label(title) if "\n" in title else title, fontsize=9, weight="bold"
    )
    found = []
    for name in titles:
        bottom = top - head - count * LINE * letter
        axes = figure.add_axes((margin / width, bottom / height, wide * letter / width, count * LINE * letter / height))
        axes.set(xlim=(0, wide), ylim=(count * LINE, 0))
        axes.axis("off")
        axes.set_title(name, loc="left", fontsize=7.5, pad=2, color=FAINT)
        found.append(axes)
        top = bottom
    return figure, found


def _behind(axes: Axes, line: int, column: float, token: str, color: Any, gid: str) -> None:
    box = Rectangle((column - 0.15, LINE * line + 0.2), cells(token) + 0.3, LINE - 0.4)
    box.set(facecolor=color, edgecolor="none", zorder=1, gid=gid, clip_on=False)
    axes.add_patch(box)


def _word(axes: Axes, line: int, column: float, token: str, color: str) -> None:
    shown = label(token) or "·"
    middle = LINE * (line + 0.5)
    axes.text(column, middle, shown, fontsize=FONT, family=MONO, va="center_baseline", color=color, zorder=2)


def _legend(figure: Figure, entries: Sequence[tuple[str, str]]) -> None:
    height = figure.get_size_inches()[1]
    width = figure.get_size_inches()[0]
    for row, (text, color) in enumerate(entries):
        y = (0.48 - 0.16 * row) / height
        mark = Rectangle((0.15 / width, y - 0.005 / height), 0.14 / width, 0.09 / height, transform=figure.transFigure)
        mark.set(facecolor=color if color != INK else "none", edgecolor=color, linewidth=0.8)
        figure.add_artist(mark)
        figure.text(0.36 / width, y, text, fontsize=7, color=INK)
