"""Small pictures for the terminal, out of rich's parts: shaded matrices, arrows between tokens, bars.

Numbers stand inside every cell and the arrows are characters, so nothing is lost without colour.
"""

from collections.abc import Callable, Mapping, Sequence

from rich.bar import Bar
from rich.color import blend_rgb
from rich.color_triplet import ColorTriplet
from rich.style import Style
from rich.table import Table
from rich.text import Text
from torch import Tensor

GREEN, YELLOW, RED = ColorTriplet(102, 189, 99), ColorTriplet(255, 255, 191), ColorTriplet(215, 48, 39)
WHITE, BLUE, BLACK = ColorTriplet(247, 251, 255), ColorTriplet(33, 113, 181), ColorTriplet(0, 0, 0)

Shade = Callable[[float], ColorTriplet]


def green_to_red(share: float) -> ColorTriplet:
    """The colours of the paper's pictures of F: green is kept, red is masked."""
    if share < 0.5:
        return blend_rgb(GREEN, YELLOW, 2 * share)
    return blend_rgb(YELLOW, RED, 2 * share - 1)


def white_to_blue(share: float) -> ColorTriplet:
    """The colours of the paper's attention strength."""
    return blend_rgb(WHITE, BLUE, share)


def number(value: float) -> str:
    """At most four characters, and a plain 0 for what rounds to it: `0`, `5`, `0.50`."""
    text = f"{value:.2f}"
    return text.removesuffix(".00") if value >= 1 or text == "0.00" else text


def matrix(title: str, caption: str, tokens: Sequence[str], values: Tensor, shade: Shade, cell: int) -> Table:
    """A lower triangle of `values` [N, N] as a table of shaded cells, `cell` characters wide."""
    largest = max(float(values.max()), 1.0)
    table = Table(box=None, padding=0, title=title, title_justify="left", title_style="bold")
    table.caption, table.caption_justify, table.caption_style = caption, "left", "dim"
    label = max(map(len, tokens)) + 1
    table.add_column("", width=label)
    for token in tokens:
        table.add_column(Text(token, "bold"), width=cell, justify="center")
    for i, (token, row) in enumerate(zip(tokens, values.tolist(), strict=True)):
        cells = []
        for value in row[: i + 1]:
            background = shade(value / largest)
            ink = BLACK if sum(background) > 3 * 127 else WHITE
            style = Style(color=ink.rgb, bgcolor=background.rgb)
            cells.append(Text(number(value).center(cell), style))
        table.add_row(Text(token, "bold"), *cells)
    return table


def sentence(tokens: Sequence[str], masked: Sequence[bool], cell: int) -> Text:
    """The tokens in a line, each centred in `cell` characters, the masked ones struck through in red."""
    line = Text()
    for token, gone in zip(tokens, masked, strict=True):
        before = (cell - len(token)) // 2
        line.append(" " * before).append(token, "strike red" if gone else "bold")
        line.append(" " * (cell - before - len(token)))
    return line


def arrow(source: int, targets: Sequence[int], count: int, cell: int) -> str:
    """A line to go under `sentence`: from token `source` back to each of the earlier `targets`."""
    line = [" "] * (count * cell)
    at = [i * cell + cell // 2 for i in range(count)]
    line[at[min(targets)] : at[source]] = "─" * (at[source] - at[min(targets)])
    line[at[source]] = "╯"
    for target in targets:
        line[at[target]] = "▲"
    return "".join(line)


def bars(labels: Sequence[str], columns: Mapping[str, Tensor | Sequence[float]], width: int) -> Table:
    """One row per label, and beside each other one bar of at most `width` characters per column (shares of 1)."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    for name in columns:
        table.add_column("", justify="right", width=4)
        table.add_column(name, width=width)
    for i, label in enumerate(labels):
        cells: list[Text | Bar] = [Text(label, "bold")]
        for shares in columns.values():
            share = float(shares[i])
            cells += [Text(number(share)), Bar(1.0, 0.0, share, width=width, color="blue")]
        table.add_row(*cells)
    return table
