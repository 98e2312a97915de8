"""Figures in one style, written whole or not at all."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selattn.errors import SelattnError, require
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


def save_figure(path: str | Path, draw: Callable[[Any], None], width: float = 7.0, height: float = 4.2) -> Path:
    """Let `draw` draw on a new figure and save it; the format is what the name ends with."""
    require("matplotlib")
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = Path(path)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        check_format(path)
        draw(figure)
    return write_figure(figure, path)


def check_format(path: str | Path) -> None:
    """Whether a figure can be written under this name: before long work rather than after it."""
    require("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

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
    import matplotlib

    dated = {"svg": "Date", "pdf": "CreationDate"}.get(form)  # which would make every file another
    held = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(held, format=form, dpi=dpi, metadata=None if dated is None else {dated: None})
    return held.getvalue()


def shades(count: int) -> list[Any]:
    """A colour for each of several lines; of many they go from dark to light, in their order."""
    if count <= len(COLORS):
        return list(COLORS[:count])
    import matplotlib

    return [matplotlib.colormaps["viridis"](0.95 * number / (count - 1)) for number in range(count)]


def plain_powers(axis: Any, form: str = "{:g}", shown: Callable[[float], float] = lambda x: x) -> None:
    """Marks of a logarithmic axis at powers of 2, as plain numbers; `shown` says which number stands at a place."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(base=2))
    axis.set_major_formatter(FuncFormatter(lambda x, _: form.format(shown(x))))
    axis.set_minor_locator(NullLocator())
