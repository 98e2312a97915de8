"""One line in a terminal, and nothing elsewhere."""

import io
import re

import pytest
from rich.console import Console

from selattn.utils.progress import ProgressLine


def console(terminal=True):
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None, legacy_windows=False)


def last_line(out):
    return re.sub(r"\x1b\[[\d;?]*\w", "", out.file.getvalue()).strip().splitlines()[-1]


def test_where_the_end_is_known():
    out = console()
    with ProgressLine("reading [a]", 2000, completed=500, console=out, keep=True) as line:
        line.advance(500)
        line.update(text="loss 2.5")
    last = last_line(out)
    for part in ("reading [a]", "1,000/2,000", "━", "loss 2.5", "left"):
        assert part in last


def test_where_it_is_not():
    out = console()
    with ProgressLine("reading", console=out, keep=True) as line:
        line.update(text="7 documents", title="reading on")
    last = last_line(out)
    assert "reading on 7 documents 0:00:00" in last
    assert "━" not in last


@pytest.mark.parametrize(("terminal", "shown"), [(True, False), (False, True)])
def test_nothing_is_shown(terminal, shown):
    out = console(terminal)
    with ProgressLine("reading", 10, shown=shown, console=out) as line:
        line.advance()
        line.update(3, "text")
    line.close()
    assert out.file.getvalue().strip() == ""
