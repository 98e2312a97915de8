"""The one style of all figures: colours for the colour-blind, sizes for print, panels, and text in cells."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import cache, wraps
from typing import Any, ParamSpec

import numpy as np
from matplotlib import font_manager, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize, SymLogNorm
from matplotlib.figure import Figure

from selattn.errors import SelattnError
from selattn.report.figure import COLORS, STYLE

BLUE, RED, GREEN = COLORS[0], COLORS[1], COLORS[2]  # red is Okabe and Ito's vermilion
FUTURE = "#e4e4e4"  # what a row cannot see, as it comes later
INK, FAINT = "#1a1a1a", "#8a8a8a"
MONO = "DejaVu Sans Mono"  # comes with matplotlib; every letter is as wide as any other
EM = 0.602  # that width, in font sizes

# From dark to light as F rises, so that it reads in grey, too. Greener is lower: less masked.
MASKING = LinearSegmentedColormap.from_list(
    "masking", ["#00441b", "#1b7837", "#5aae61", "#a6dba0", "#e7f4e4", "#ffffff"]
)
MASKING_BLUE = LinearSegmentedColormap.from_list(
    "masking", ["#08306b", "#2171b5", "#6baed6", "#b3d3e8", "#e9f2fa", "#ffffff"]
)
ATTENTION = LinearSegmentedColormap.from_list("attention", ["#ffffff", "#c6dbef", "#6baed6", "#2171b5", "#08306b"])

P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in the one style, whatever the user's own settings are."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches that needs no window."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panels(figure: Figure, count: int, columns: int) -> list[Axes]:
    """So many axes in rows; places that are left over stay empty."""
    rows = math.ceil(count / columns)
    grid = figure.subplots(rows, columns, squeeze=False)
    flat = [axes for row in grid for axes in row]
    for axes in flat[count:]:
        axes.axis("off")
    return flat[:count]


def columns_for(count: int, most: int = 6) -> int:
    """How many panels go into a row: equal rows where that is possible."""
    rows = math.ceil(count / most)
    return math.ceil(count / rows)


def masking_norm(highest: float) -> Normalize:
    """Linear up to 1, then by powers of ten: F is 0 for what is needed, and hundreds for what is long forgotten."""
    return SymLogNorm(linthresh=1.0, linscale=0.5, vmin=0.0, vmax=max(highest, 1.0), base=10)


def masking_ticks(highest: float) -> list[float]:
    """Whole powers of ten, as far as F goes."""
    return [0.0, *(10.0**power for power in range(math.floor(math.log10(max(highest, 1.0))) + 1))]


def square(axes: Axes, values: Any, colors: Colormap, norm: Normalize, title: str) -> Any:
    """A lower triangle of values [N, N] as an image; what lies above the diagonal is the future."""
    above = np.triu(np.ones_like(values, dtype=bool), 1)
    image = axes.imshow(
        np.ma.masked_array(values, above),
        cmap=colors,
        norm=norm,
        interpolation="nearest",
        aspect="equal",
        origin="upper",
    )
    axes.set_facecolor(FUTURE)
    axes.set_title(title, loc="left", fontsize=8)
    axes.tick_params(length=2, labelsize=7)
    size = len(values)
    ticks = sorted({0, size // 2, size - 1})
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    for side in axes.spines.values():
        side.set_visible(False)
    return image


def token_axes(axes: Axes, tokens: Sequence[str]) -> None:
    """The tokens themselves along both axes, where they are few."""
    names = [label(token) or "·" for token in tokens]
    places = list(range(len(tokens)))
    axes.set_xticks(places, names, rotation=90, fontsize=5, family=MONO)
    axes.set_yticks(places, names, fontsize=5, family=MONO)
    axes.tick_params(length=0, pad=1)


def label(token: str) -> str:
    """A token in a picture: no blank in front, line ends and tabs as signs, no letters that the font lacks."""
    text = token[1:] if token.startswith(" ") and len(token) > 1 else token
    for plain, sign in ((" ", "␣"), ("\n", "⏎"), ("\r", "␍"), ("\t", "⇥")):
        text = text.replace(plain, sign)
    return "".join(letter if ord(letter) in _letters() else "□" for letter in text)


def cells(token: str) -> int:
    """How many letters wide a token is drawn."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in label(token)) or 1


def lines(tokens: Sequence[str], width: int) -> Iterator[tuple[int, int]]:
    """(line, column) of each token: words apart as they are written, in lines of `width` letters.

    A line ends before a word, not inside one, unless the word alone is longer than a line.
    """
    line, column = 0, 0
    for place, token in enumerate(tokens):
        gap = 1 if column and token.startswith(" ") else 0
        size = cells(token)
        whole = size
        if token.startswith(" "):
            for after in tokens[place + 1 :]:
                if after.startswith((" ", "\n")) or whole > width:
                    break
                whole += cells(after)
        needed = whole if whole <= width else size
        if column and column + gap + needed > width:
            line, column, gap = line + 1, 0, 0
        yield line, column + gap
        column += gap + size
        if "\n" in token:
            line, column = line + 1, 0


def check_layers(wanted: Sequence[int] | None, layers: int) -> list[int]:
    """The layers to draw, counted from 0; all of them by default."""
    chosen = list(range(layers)) if wanted is None else list(wanted)
    for layer in chosen:
        if not 0 <= layer < layers:
            raise SelattnError(f"there is no layer {layer}: the model has layers 0 to {layers - 1}")
    if not chosen:
        raise SelattnError("no layer is left to draw")
    return chosen


@cache
def _letters() -> frozenset[int]:
    """What the font has."""
    path = font_manager.findfont(MONO, fallback_to_default=True)
    return frozenset(font_manager.get_font(path).get_charmap())
