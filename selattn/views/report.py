"""Reports: one HTML file with text, tables, figures and their origin; it opens from disk and needs no network.

A block turns into HTML by itself, as `selattn.utils.tables.Table` does; whatever a user wrote stays text.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from selattn.utils.files import write_text
from selattn.utils.records import Provenance
from selattn.utils.typed import flat

if TYPE_CHECKING:
    from selattn.views.explorer import Page

MOST_SVG = 400_000  # bytes; a figure with more strokes than that is drawn as pixels
PIXELS = 96  # of an inch, as CSS counts
_HERE = Path(__file__).parent
_PLACE = re.compile(r"/\*\{(\w+)\}\*/")


class Block(Protocol):
    """A part of a section."""

    def html(self) -> str:
        """The block as an HTML element."""


@dataclass(frozen=True)
class Paragraph:
    """A few sentences, plain; `kind` is "", "lead" (large, below a title) or "note" (small)."""

    text: str
    kind: str = ""

    def html(self) -> str:
        return f"<p{_class(self.kind)}>{html.escape(self.text)}</p>"


@dataclass(frozen=True)
class Headline:
    """The few numbers that matter, large: each as it is shown, with what it means."""

    numbers: Sequence[tuple[str, str]]

    def html(self) -> str:
        cards = "".join(
            f"<div><b>{html.escape(n)}</b><span>{html.escape(what)}</span></div>" for n, what in self.numbers
        )
        return f'<div class="headline">{cards}</div>'


@dataclass(frozen=True)
class Facts:
    """Names and values, folded away below a title: settings, versions, the machine."""

    title: str
    values: Mapping[str, Any]

    def html(self) -> str:
        rows = "".join(
            f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(_plain(value))}</dd></div>"
            for name, value in flat(self.values)
        )
        return f"<details><summary>{html.escape(self.title)}</summary><dl>{rows}</dl></details>"


@dataclass(frozen=True)
class Listing:
    """Text as it is: a command, or what a model wrote, which as `prose` has its lines broken between words."""

    text: str
    caption: str = ""
    prose: bool = False

    def html(self) -> str:
        caption = f"<figcaption>{html.escape(self.caption)}</figcaption>" if self.caption else ""
        return f"<figure>{caption}<pre{_class('prose' if self.prose else '')}>{html.escape(self.text)}</pre></figure>"


@dataclass(frozen=True)
class Picture:
    """A figure of matplotlib with a caption below it; `says` is for those who cannot see it."""

    figure: Any
    caption: str
    says: str

    def html(self) -> str:
        from selattn.views.plot.style import figure_bytes

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
    """An explorer's page in a frame that can reach nothing of the report; `view` is what it opens with."""

    page: Page
    caption: str
    view: str = ""

    def html(self) -> str:
        return f"<figure><figcaption>{html.escape(self.caption)}</figcaption>{self.page.frame(self.view)}</figure>"


@dataclass(frozen=True)
class Section:
    """A titled part of a report."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Report:
    """One page.

    Attributes:
        title: of the page.
        lead: one or two sentences below it.
        blocks: what stands in front of the sections.
        sections: in their order; the page begins with links to them.
    """

    title: str
    lead: str
    blocks: Sequence[Block]
    sections: Sequence[Section]

    def html(self) -> str:
        """The whole document as one file, styles included."""
        titled = [(number, html.escape(each.title), each) for number, each in enumerate(self.sections, 1)]
        held = {
            "theme": (_HERE / "theme.css").read_text("utf-8"),
            "style": (_HERE / "report.css").read_text("utf-8"),
            "title": html.escape(self.title),
            "lead": html.escape(self.lead),
            "blocks": _all(self.blocks),
            "links": "".join(f'<li><a href="#s{number}">{title}</a></li>' for number, title, _ in titled),
            "sections": "".join(
                f'<section id="s{number}"><h2>{title}</h2>{_all(each.blocks)}</section>'
                for number, title, each in titled
            ),
        }
        return _PLACE.sub(lambda place: held[place[1]], (_HERE / "report.html").read_text("utf-8"))

    def save(self, path: str | Path) -> Path:
        """Write the page, whole or not at all."""
        path = Path(path)
        write_text(path, self.html())
        return path


def how_it_was_made(made: Provenance, settings: Mapping[str, Any], about: str = "") -> Section:
    """The last section of every report: command, settings, versions and machine, as its record has them.

    Args:
        made: by which command, when, with what.
        settings: what was set, nested as it may be.
        about: a sentence on where everything is.
    """
    commit = made.commit or "not known: the package was installed outside a checkout"
    changed = " (the code had been changed since)" if made.dirty else ""
    run = {"date": made.date, "seed": made.seed, "commit": f"{commit}{changed}"}
    return Section(
        "How this was made",
        [
            Listing(made.command, "The command"),
            *([Paragraph(about, "note")] if about else []),
            Facts("Settings", settings),
            Facts("Run, versions and machine", {**run, **made.versions, **made.machine}),
        ],
    )


def _all(blocks: Sequence[Block]) -> str:
    return "\n".join(block.html() for block in blocks)


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
