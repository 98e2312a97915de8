"""What a report consists of. Every block turns into HTML by itself; whatever a user wrote stays text."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from selattn.utils.typed import flat
from selattn.views.explorer import Page
from selattn.views.figure import figure_bytes

MOST_SVG = 400_000  # bytes; a figure with more strokes than that is drawn as pixels
PIXELS = 96  # of an inch, as CSS counts


class Block(Protocol):
    """A part of a section."""

    def html(self) -> str:
        """The block as an HTML element."""


@dataclass(frozen=True)
class Paragraph:
    """A few sentences.

    Attributes:
        text: plain.
        kind: "" or "lead" (large, below a title) or "note" (small).
    """

    text: str
    kind: str = ""

    def html(self) -> str:
        """The text as a paragraph, escaped."""
        return f"<p{_class(self.kind)}>{html.escape(self.text)}</p>"


@dataclass(frozen=True)
class Headline:
    """The few numbers that matter, large.

    Attributes:
        numbers: what each means, by the number as it is shown.
    """

    numbers: Sequence[tuple[str, str]]

    def html(self) -> str:
        """Cards in a row."""
        cards = "".join(
            f"<div><b>{html.escape(n)}</b><span>{html.escape(what)}</span></div>" for n, what in self.numbers
        )
        return f'<div class="headline">{cards}</div>'


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows.

    Attributes:
        head: of the columns.
        rows: of cells, as they are shown.
        caption: above it.
        strong: the rows that stand out, counted from 0.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    strong: Sequence[int] = ()

    def html(self) -> str:
        """A table in a box of its own, which a phone can scroll."""
        caption = f"<caption>{html.escape(self.caption)}</caption>" if self.caption else ""
        head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in self.head)
        body = "".join(self._row(number, cells) for number, cells in enumerate(self.rows))
        return f'<div class="wide"><table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'

    def _row(self, number: int, cells: Sequence[str]) -> str:
        first, *others = cells
        name = f'<th scope="row">{html.escape(first)}</th>'
        return (
            f"<tr{_class('strong' if number in self.strong else '')}>{name}"
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in others)
            + "</tr>"
        )


@dataclass(frozen=True)
class Facts:
    """Names and values, folded away below a title: settings, versions, the machine."""

    title: str
    values: Mapping[str, Any]
    open: bool = False

    def html(self) -> str:
        """A list that opens with a click."""
        rows = "".join(
            f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(_plain(value))}</dd></div>"
            for name, value in flat(self.values)
        )
        shown = " open" if self.open else ""
        return f"<details{shown}><summary>{html.escape(self.title)}</summary><dl>{rows}</dl></details>"


@dataclass(frozen=True)
class Listing:
    """Text as it is: a command, what a model wrote.

    Attributes:
        text: with its line ends.
        caption: above it.
        prose: whether it is read as prose, so that lines are broken between words.
    """

    text: str
    caption: str = ""
    prose: bool = False

    def html(self) -> str:
        """The text as a preformatted figure, escaped."""
        caption = f"<figcaption>{html.escape(self.caption)}</figcaption>" if self.caption else ""
        return f"<figure>{caption}<pre{_class('prose' if self.prose else '')}>{html.escape(self.text)}</pre></figure>"


@dataclass(frozen=True)
class Picture:
    """A figure.

    Attributes:
        figure: of matplotlib.
        caption: below it.
        says: what it shows, for those who cannot see it.
    """

    figure: Any
    caption: str
    says: str

    def html(self) -> str:
        """An image with everything inside."""
        kind, data = "svg+xml", figure_bytes(self.figure, "svg")
        if len(data) > MOST_SVG:
            kind, data = "png", figure_bytes(self.figure, "png", dpi=2 * PIXELS)
        width, height = (round(PIXELS * inches) for inches in self.figure.get_size_inches())
        source = f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
        return (
            f'<figure><div class="wide"><img src="{source}" width="{width}" height="{height}" '
            f'alt="{html.escape(self.says, quote=True)}"></div>'
            f"<figcaption>{html.escape(self.caption)}</figcaption></figure>"
        )


@dataclass(frozen=True)
class Explorer:
    """An explorer's page inside the report.

    Attributes:
        page: which one.
        caption: above it.
        view: which view it opens with, as the explorer's address bar has it.
    """

    page: Page
    caption: str
    view: str = ""

    def html(self) -> str:
        """A frame that can reach nothing of the report."""
        return f"<figure><figcaption>{html.escape(self.caption)}</figcaption>{self.page.frame(self.view)}</figure>"


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
