"""One table for terminals, pages, papers and reports: what is written stays as it is, numbers are never cut."""

import io

import pytest
from rich.console import Console

from selattn.utils.tables import Table, byte_size

TABLE = Table(
    ("model", "loss", "tokens/s"),
    [("<BOS> [bold] & 5%", "6.4444", "2041.5 (1710.2 to 2264.1)"), ("b", "5.25", "3.0")],
    "results [x]",
    notes=["A note."],
    strong=[1],
)


def shown(table, width=80):
    out = Console(file=io.StringIO(), width=width, color_system=None)
    out.print(table.rich())
    return [line.rstrip() for line in out.file.getvalue().splitlines() if line.strip()]


def test_in_a_terminal():
    lines = shown(TABLE)
    assert lines[0] == "results [x]"
    assert lines[1].split() == ["model", "loss", "tokens/s"]
    assert lines[3].endswith("6.4444  2041.5 (1710.2 to 2264.1)")
    assert lines[3].strip().startswith("<BOS> [bold] & 5%")
    assert lines[4].index("5.25") == lines[3].index("6.4444") + 2  # numbers end at one column


@pytest.mark.parametrize("width", [30, 50])
def test_no_number_is_cut_where_there_is_little_room(width):
    lines = shown(TABLE, width)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    assert any("6.4444" in line for line in lines)


def test_without_headings():
    assert [line.split() for line in shown(Table((), [("a", "1"), ("b", "2")], left=[1]))] == [["a", "1"], ["b", "2"]]


def test_in_markdown_and_latex():
    assert TABLE.grid().splitlines()[2] == "| &lt;BOS> [bold] & 5% | 6.4444 | 2041.5 (1710.2 to 2264.1) |"
    assert TABLE.markdown().startswith("**results [x]**\n\n| model |")
    assert TABLE.markdown().endswith("\n- A note.\n")
    assert r"<BOS> [bold] \& 5\% & 6.4444" in TABLE.latex()
    assert TABLE.latex().startswith("% A note.\n\\begin{table}")


def test_in_html():
    found = TABLE.html()
    assert '<th scope="row">&lt;BOS&gt; [bold] &amp; 5%</th><td>6.4444</td>' in found
    assert '<tr class="strong"><th scope="row">b</th>' in found


def test_bytes_in_words():
    assert [byte_size(count) for count in (999, 4200, 9.4e6, 12e9, 3.2e12)] == [
        *("999 bytes", "4.2 kB", "9.4 MB", "12.0 GB", "3.2 TB")
    ]
