"""Texts in rows and columns, written once and shown everywhere: in a terminal, in Markdown, in LaTeX and in HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table as RichTable

_SPECIAL = re.compile(r"([&%$#_{}])")


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows."""

    head: Sequence[str]  # of the columns; empty for a table without headings
    rows: Sequence[Sequence[str]]
    title: str = ""  # above it
    notes: Sequence[str] = ()  # below it, in Markdown and LaTeX
    strong: Sequence[int] = ()  # rows that stand out, counted from 0
    whole: Sequence[int] = ()  # columns whose cells are never broken, in a terminal; those of numbers never are
    left: Sequence[int] = ()  # columns beside the first that are aligned at the left; others are aligned like numbers
    sections: Sequence[int] = ()  # rows with a line above them, in a terminal
    styles: Mapping[tuple[int, int], str] = field(default_factory=dict)  # of cells (row, column), in a terminal

    def rich(self) -> RichTable:
        """For `rich.print`."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(
            title=Text(self.title) if self.title else None,
            title_justify="left",
            title_style="bold",
            show_header=bool(self.head),
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        for column in range(len(self.head) or max(map(len, self.rows), default=0)):
            name = self.head[column] if self.head else ""
            cells = [row[column] for row in self.rows if len(row) > column]
            whole = column in self.whole or (column not in (0, *self.left) and not any(" " in cell for cell in cells))
            justify: Any = "left" if column in (0, *self.left) else "right"
            table.add_column(Text(name), justify=justify, overflow="fold", no_wrap=whole)
        for number, row in enumerate(self.rows):
            if number in self.sections:
                table.add_section()
            strong = "bold" if number in self.strong else ""
            table.add_row(*(Text(cell, self.styles.get((number, at), strong)) for at, cell in enumerate(row)))
        return table

    def grid(self) -> str:
        """Rows and columns alone, in Markdown; a text like <BOS> is no tag."""
        lines = [f"| {' | '.join(each)} |".replace("<", "&lt;") for each in (self.head, *self.rows)]
        return "\n".join([lines[0], f"|{' --- |' * len(self.head)}", *lines[1:]]) + "\n"

    def markdown(self) -> str:
        """For a page, with title and notes."""
        notes = "".join(f"- {note}\n" for note in self.notes)
        return f"**{self.title}**\n\n{self.grid()}" + (f"\n{notes}" if notes else "")

    def latex(self) -> str:
        """For a paper, with the title as the caption."""
        kinds = "l" + "c" * (len(self.head) - 1)
        rows = [" & ".join(map(_escaped, row)) + r" \\" for row in (self.head, *self.rows)]
        notes = "".join(f"% {note}\n" for note in self.notes)
        body = "\n".join([rows[0], r"\hline", *rows[1:]])
        return (
            f"{notes}\\begin{{table}}[h]\n\\caption{{{_escaped(self.title)}}}\n\\begin{{center}}\n"
            f"\\begin{{tabular}}{{{kinds}}}\n{body}\n\\end{{tabular}}\n\\end{{center}}\n\\end{{table}}\n"
        )

    def html(self) -> str:
        """In a box of its own, which a phone can scroll."""
        caption = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in self.head)
        body = "".join(self._html_row(number, cells) for number, cells in enumerate(self.rows))
        return f'<div class="wide"><table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'

    def _html_row(self, number: int, cells: Sequence[str]) -> str:
        strong = ' class="strong"' if number in self.strong else ""
        name, *others = map(html.escape, cells)
        return f'<tr{strong}><th scope="row">{name}</th>' + "".join(f"<td>{each}</td>" for each in others) + "</tr>"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text).replace("~", r"\textasciitilde{}").replace("^", r"\textasciicircum{}")


def byte_size(count: float) -> str:
    """A number of bytes in words: 512 bytes, 4.2 kB, 9.4 MB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
