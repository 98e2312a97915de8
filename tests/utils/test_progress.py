"""A bar in a terminal; elsewhere a line now and then."""

import io
import re

import pytest
from rich.console import Console

from selattn.utils import progress
from selattn.utils.progress import Progress, ProgressLine, Shown


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


def lines(monkeypatch, last, sure, seconds):
    """What is printed where there is no terminal, if a step takes so many seconds."""
    clock = iter(range(100, 10_000, seconds))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    out = console(False)
    shown = Shown(out)
    shown.begin(last, "iteration", 5, sure=sure)
    for _ in range(6, 10):
        shown.advance(1, "loss 2.5")
    shown.end()
    return out.file.getvalue().splitlines()


def test_a_line_now_and_then(monkeypatch):
    assert lines(monkeypatch, 20, False, 15) == [
        "iteration 6/20  loss 2.5",
        "iteration 7/20  loss 2.5  left at most 0:03:15",
        "iteration 8/20  loss 2.5  left at most 0:03:00",
        "iteration 9/20  loss 2.5  left at most 0:02:45",
    ]
    assert [line.split()[1] for line in lines(monkeypatch, 20, False, 4)] == ["6/20", "9/20"]


def test_where_the_end_is_known_it_is_told(monkeypatch):
    assert lines(monkeypatch, 12, True, 15)[-1] == "iteration 9/12  loss 2.5  left 0:00:45"


def test_one_thing_after_another():
    out = console()
    shown = Shown(out, keep=True)
    shown.begin(2, "reading")
    shown.advance()
    shown.begin(None, "searching")
    shown.say("[b] as it is")
    shown.end()
    written = re.sub(r"\x1b\[[\d;?]*\w", "", out.file.getvalue())
    assert "reading 1/2" in written
    assert "[b] as it is" in written
    assert "searching" in last_line(out)


def test_the_silent_one_shows_nothing(capsys):
    silent = Progress()
    silent.begin(3, "reading")
    silent.advance(1, "text")
    silent.say("something")
    silent.end()
    assert (silent.shows, *capsys.readouterr()) == (False, "", "")
