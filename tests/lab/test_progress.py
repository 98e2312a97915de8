"""The view over all runs: shares of all of them, the time left, and runs that come up while an experiment measures."""

import io

import pytest
from rich.console import Console

from lab.engine import progress
from lab.engine.experiment import Need
from lab.engine.progress import ShownOverview
from tests.lab.tiny import tiny_run

NEED = Need(tiny_run())


@pytest.fixture
def shown(monkeypatch):
    """An overview without a terminal that says every move, and what it has said so far."""
    monkeypatch.setattr(progress, "_SECONDS", 0.0)
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    written = io.StringIO()
    return ShownOverview(Console(file=written, width=200)), lambda: written.getvalue().splitlines()


def carry_out(overview, name, first=0):
    part = overview.display(name, NEED)
    part.begin(4, "step", first)
    for _ in range(first + 1, 5):
        part.advance()
    part.end()


def test_every_run_is_a_share_of_all(shown):
    overview, lines = shown
    overview.begin({"a": NEED, "b": NEED})
    carry_out(overview, "a")
    carry_out(overview, "b")
    assert [line.split("of all")[0].split()[-1] for line in lines()] == [
        *("0%", "12%", "25%", "38%", "50%"),
        *("50%", "62%", "75%", "88%", "100%"),
    ]
    assert lines()[2].startswith("run 1 of 2: a  step 2/4")
    assert lines()[2].endswith("left 0:01:30")  # a quarter in 30 seconds
    assert lines()[-1].endswith("left 0:00:00")


def test_what_was_done_before_says_nothing_about_the_time_left(shown):
    overview, lines = shown
    overview.begin({"a": NEED})
    carry_out(overview, "a", first=2)
    assert lines()[0].endswith("50% of all")
    assert lines()[1].endswith("75% of all  left 0:00:20")  # a quarter in 20 seconds, and a quarter is left


@pytest.mark.parametrize("planned", [{}, {"a": NEED}])
def test_a_run_that_comes_up_on_the_way_is_counted_by_itself(shown, planned):
    overview, lines = shown
    overview.begin(planned)
    for name in planned:
        carry_out(overview, name)
    overview.end()
    before = len(lines())
    carry_out(overview, "with budgets")
    found = lines()[before:]
    assert found[0].startswith("run 1 of 1: with budgets")
    assert [line.split("of all")[0].split()[-1] for line in found] == ["0%", "25%", "50%", "75%", "100%"]
    assert "-" not in "".join(found)
