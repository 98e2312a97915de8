"""The one style of all figures: colors for the color-blind, sizes for print, files, panels and labels."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np
from matplotlib import colormaps, font_manager, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize, SymLogNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from selattn.errors import SelattnError
from selattn.utils.files import write_bytes

# Okabe and Ito's colours, which those who do not see red or green can tell apart; grey for the yellow, which is faint.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")  # for those who print without colours

# Names are no formulas: they may have dollar signs.
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
    "text.parse_math": False,
    "svg.hashsalt": "selattn",  # so that the same figure is the same file
}

BLUE, GREEN = COLORS[0], COLORS[2]
RED = "#CC3311"  # a line through a word says the same to those who do not see red
FUTURE = "#e4e4e4"  # what a row cannot see, as it comes later
INK, SOFT, FAINT = "#1a1a1a", "#5c5c5c", "#8a8a8a"
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

WIDE = 7.0  # inches: the text of a page
CELL = 5.6 / 72  # inches of a row that has its token beside it

P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in the one style, whatever the user's own settings are."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn


def new_figure(width: float, height: float) -> Figure:
    """An empty figure that needs no window; sizes in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def check_format(path: str | Path) -> None:
    """Whether a figure can be written under this name: before long work rather than after it."""
    if Path(path).suffix.lstrip(".") not in FigureCanvasAgg.get_supported_filetypes():
        raise SelattnError(f"cannot draw {path}: its name must end with .png, .svg or .pdf")


def write_figure(figure: Any, path: str | Path, dpi: int = 160) -> Path:
    """Write a figure whole or not at all; the format is what the name ends with."""
    path = Path(path)
    check_format(path)
    write_bytes(path, figure_bytes(figure, path.suffix.lstrip("."), dpi))
    return path


def figure_bytes(figure: Any, form: str, dpi: int = 160) -> bytes:
    """A figure as a file's content: the same figure gives the same bytes."""
    dated = {"svg": "Date", "pdf": "CreationDate"}.get(form)  # which would make every file another
    held = io.BytesIO()
    with rc_context(STYLE):
        figure.savefig(held, format=form, dpi=dpi, metadata=None if dated is None else {dated: None})
    return held.getvalue()


def shades(count: int) -> list[Any]:
    """A colour for each of several lines; of many they go from dark to light, in their order."""
    if count <= len(COLORS):
        return list(COLORS[:count])
    return [colormaps["viridis"](0.95 * number / (count - 1)) for number in range(count)]


def plain_powers(axis: Any, form: str = "{:g}", shown: Callable[[float], float] = lambda x: x) -> None:
    """Marks of a logarithmic axis at powers of 2, as plain numbers; `shown` says which number stands at a place."""
    axis.set_major_locator(LogLocator(base=2))
    axis.set_major_formatter(FuncFormatter(lambda x, _: form.format(shown(x))))
    axis.set_minor_locator(NullLocator())


def panels(figure: Figure, count: int, columns: int) -> list[Axes]:
    """`count` axes in rows; places that are left over stay empty."""
    rows = math.ceil(count / columns)
    grid = figure.subplots(rows, columns, squeeze=False)
    flat = [axes for row in grid for axes in row]
    for axes in flat[count:]:
        axes.axis("off")
    return flat[:count]


def panel_grid(count: int, size: int, named: bool) -> tuple[int, float]:
    """The number of panels beside each other on a page, each of `size` rows, and their size in inches.

    `named`: tokens stand beside the rows, so that every row needs the height of a letter.
    """
    if named:
        inches = max(1.6, CELL * size)
        return max(1, min(count, int((WIDE - 0.8) // (inches + 0.35)))), inches
    rows = math.ceil(count / (4 if count <= 16 else 6))
    columns = math.ceil(count / rows)
    return columns, min(1.8, (WIDE - 1.1) / columns)


def heading(figure: Figure | SubFigure, text: str) -> None:
    """The title above all, the same in every figure."""
    figure.suptitle(text, x=0.01, ha="left", fontsize=9, weight="bold")


def key(figure: Figure, entries: Sequence[tuple[str, str]]) -> None:
    """The meaning of colors, below all."""
    marks = [Patch(facecolor=color, edgecolor=FAINT, linewidth=0.5, label=what) for what, color in entries]
    figure.legend(
        handles=marks, loc="outside lower left", ncols=len(marks), frameon=False, fontsize=7, handlelength=1.2
    )


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
        interpolation="auto",  # where several entries fall on one pixel, the mean of their colors
        interpolation_stage="rgba",
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
    """The letters of the font."""
    path = font_manager.findfont(MONO, fallback_to_default=True)
    return frozenset(font_manager.get_font(path).get_charmap())
