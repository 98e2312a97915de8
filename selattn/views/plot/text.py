"""Figures that color the text itself: what one token sees of the tokens before it, and what stays unmasked."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from selattn.errors import SelattnError
from selattn.views.plot.style import (
    BLUE,
    EM,
    FAINT,
    GREEN,
    INK,
    MONO,
    RED,
    SOFT,
    check_layers,
    label,
    new_figure,
    styled,
)

if TYPE_CHECKING:
    from selattn.evaluation.traces import Trace

WIDTH, NARROW = 104, 62  # letters of a line: at most, and at least where there are several
LINE = 2.0  # the height of a line, in widths of a letter
FONT = 7.5
DARKEST = 0.75  # the strongest blue or green still lets a letter be read


@styled
def tokens(
    trace: Trace, layers: Sequence[int] | None = None, position: int | None = None, title: str | None = None
) -> Figure:
    """The tokens that the token at a position sees, layer by layer (the paper's figure 1).

    A red line through a token: the share 1 - e^-F of its odds that masking takes away. Blue behind it: the attention
    that it gets, a mean over the heads; the bluest token gets the most.

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
    key = [
        ("struck through: masked; the redder, the more: $1 - e^{-F}$", RED),
        (f"lit: read; the bluest gets {most:.0%} of the attention", BLUE),
        ("framed: the token that looks back", INK),
    ]
    figure, blocks = _blocks(seen, [_layer_title(trace, layer) for layer in chosen], title or trace.model, key)
    for block, layer, row in zip(blocks, chosen, weights, strict=True):
        masked = 1.0 - np.exp(-np.maximum(trace.F(layer)[at, : at + 1], 0.0))
        for place in range(at + 1):
            block.light(place, to_rgba(BLUE, DARKEST * float(row[place]) / most), f"attention {place}")
            block.word(place, INK)
            if masked[place] > 0:
                block.strike(place, float(masked[place]), f"masking {place}")
        block.frame(at)
    return figure


@styled
def words(trace: Trace, layers: Sequence[int] | None = None, title: str | None = None) -> Figure:
    """The last row of F over the words of the text: what each layer still sees, and what is masked.

    The green behind a token is e^-F, the share of its odds that masking leaves: 1 is the strongest green.
    """
    chosen = check_layers(layers, trace.layers)
    key = [
        ("lit: what the last token still sees; the greenest is all of it: $e^{-F} = 1$", GREEN),
        ("grey: masked, $e^{-F} < 0.1$", FAINT),
    ]
    titles = [_layer_title(trace, layer) for layer in chosen]
    figure, blocks = _blocks(trace.tokens, titles, title or trace.model, key)
    for block, layer in zip(blocks, chosen, strict=True):
        left = np.exp(-np.maximum(trace.F(layer)[-1], 0.0))
        for place, share in enumerate(left):
            block.light(place, to_rgba(GREEN, DARKEST * float(share)), f"left {place}")
            block.word(place, INK if share > 0.1 else FAINT)
    return figure


def _layer_title(trace: Trace, layer: int) -> str:
    kind = trace.kinds[layer]
    return f"layer {layer}" if kind == "selective" else f"layer {layer} ({kind} attention)"


@dataclass(frozen=True)
class _Block:
    """The text once, in axes that count letters: `places` has the line and the column of each token."""

    axes: Axes
    tokens: Sequence[str]
    places: Sequence[tuple[int, int]]

    def word(self, place: int, color: str) -> None:
        """Draw the token at a place in a color."""
        line, column = self.places[place]
        how: Any = {"fontsize": FONT, "family": MONO, "va": "center_baseline", "zorder": 2}
        self.axes.text(column, LINE * (line + 0.5), written(self.tokens[place]), color=color, **how)

    def light(self, place: int, color: Any, gid: str) -> None:
        """A color behind it."""
        line, column = self.places[place]
        box = Rectangle((column, LINE * line + 0.2), cells(self.tokens[place]), LINE - 0.4)
        box.set(facecolor=color, edgecolor="none", zorder=1, gid=gid, clip_on=False)
        self.axes.add_patch(box)

    def strike(self, place: int, share: float, gid: str) -> None:
        """A red line through it."""
        line, column = self.places[place]
        ends = [column, column + cells(self.tokens[place])]
        (drawn,) = self.axes.plot(ends, 2 * [LINE * (line + 0.5)], solid_capstyle="butt")
        drawn.set(color=RED, alpha=share, linewidth=1.1, zorder=3, gid=gid, clip_on=False)

    def frame(self, place: int) -> None:
        """A black frame around it."""
        line, column = self.places[place]
        box = Rectangle((column - 0.3, LINE * line + 0.12), cells(self.tokens[place]) + 0.6, LINE - 0.24)
        box.set(fill=False, edgecolor=INK, linewidth=1.0, zorder=4, clip_on=False)
        self.axes.add_patch(box)


def _blocks(
    tokens: Sequence[str], titles: Sequence[str], title: str, key: Sequence[tuple[str, str]]
) -> tuple[Figure, list[_Block]]:
    """A figure with one block of text for each title, and below them what the colors mean."""
    wide = balanced(tokens, WIDTH, NARROW)
    places = list(lines(tokens, wide))
    count = places[-1][0] + 1
    letter = EM * FONT / 72  # inches
    margin, head, top, foot = 0.15, 0.25, 0.32, 0.17 * len(key) + 0.24
    width = wide * letter + 2 * margin
    height = len(titles) * (count * LINE * letter + head) + top + foot
    figure = new_figure(width, height)
    figure.set_layout_engine("none")
    figure.text(margin / width, (height - 0.2) / height, title.replace("\n", " "), fontsize=9, weight="bold")
    found = []
    bottom = height - top
    for name in titles:
        bottom -= head + count * LINE * letter
        axes = figure.add_axes((margin / width, bottom / height, wide * letter / width, count * LINE * letter / height))
        axes.set(xlim=(0, wide), ylim=(count * LINE, 0))
        axes.axis("off")
        axes.set_title(name, loc="left", fontsize=7.5, pad=2, color=SOFT)
        found.append(_Block(axes, tokens, places))
    for row, (text, color) in enumerate(key):
        y = foot - 0.28 - 0.17 * row
        mark = Rectangle(
            (margin / width, (y - 0.01) / height), 0.14 / width, 0.1 / height, transform=figure.transFigure
        )
        mark.set(facecolor="none" if color == INK else color, edgecolor=color, linewidth=0.8)
        figure.add_artist(mark)
        figure.text((margin + 0.21) / width, y / height, text, fontsize=7, color=INK, parse_math=True)
    return figure, found


def written(token: str) -> str:
    """A token inside its text, where a blank is drawn as a blank."""
    return token if token == " " else label(token) or "·"


def cells(token: str) -> int:
    """How many letters wide a token is drawn."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in written(token))


def lines(tokens: Sequence[str], width: int) -> Iterator[tuple[int, int]]:
    """(line, column) of each token: words apart as they are written, in lines of `width` letters.

    A line ends before a word, not inside one, unless the word alone is longer than a line. A token that is a blank ends
    a word; it stays in its line, into the margin if need be.
    """
    line, column = 0, 0
    for place, token in enumerate(tokens):
        blank, size = token == " ", cells(token)
        apart = token.startswith(" ") or (place == 1 and tokens[0].startswith("<"))  # <s> is no part of a word
        gap = 1 if column and apart and not blank else 0
        whole = size
        if token.startswith(" ") or (place and tokens[place - 1] == " "):
            for after in tokens[place + 1 :]:
                if after.startswith((" ", "\n")) or whole > width:
                    break
                whole += cells(after)
        needed = whole if whole <= width else size
        if column and not blank and column + gap + needed > width:
            line, column, gap = line + 1, 0, 0
        yield line, column + gap
        column += gap + size
        if "\n" in token:
            line, column = line + 1, 0


def balanced(tokens: Sequence[str], most: int, least: int) -> int:
    """The smallest width, from `least` on, in which the text has no more lines than in `most`: no lonely last word."""

    def last_line(width: int) -> int:
        return max(line for line, _ in lines(tokens, width))

    count, low, high = last_line(most), min(least, most), most
    while low < high:
        middle = (low + high) // 2
        if last_line(middle) <= count:
            high = middle
        else:
            low = middle + 1
    return low
