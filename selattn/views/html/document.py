"""A report as a whole: a title, sections, and one file that holds all of it."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from selattn.utils.files import write_text
from selattn.views.html.blocks import Block

_HERE = Path(__file__).parent
_PLACE = re.compile(r"/\*\{(\w+)\}\*/")


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        title: of it.
        blocks: in their order.
    """

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
        links = "".join(
            f'<li><a href="#s{number}">{html.escape(section.title)}</a></li>'
            for number, section in enumerate(self.sections, 1)
        )
        parts = "".join(
            f'<section id="s{number}"><h2>{html.escape(section.title)}</h2>{_all(section.blocks)}</section>'
            for number, section in enumerate(self.sections, 1)
        )
        held = {
            "theme": (_HERE.parent / "theme.css").read_text("utf-8"),
            "style": (_HERE / "style.css").read_text("utf-8"),
            "title": html.escape(self.title),
            "lead": html.escape(self.lead),
            "blocks": _all(self.blocks),
            "links": links,
            "sections": parts,
        }
        return _PLACE.sub(lambda place: held[place[1]], (_HERE / "page.html").read_text("utf-8"))

    def save(self, path: str | Path) -> Path:
        """Write the page, whole or not at all."""
        path = Path(path)
        write_text(path, self.html())
        return path


def _all(blocks: Sequence[Block]) -> str:
    return "\n".join(block.html() for block in blocks)
