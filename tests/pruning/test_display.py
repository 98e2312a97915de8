"""What a search shows where there is no terminal: a line now and then, with the factor and the time left."""

import io

from rich.console import Console

from selattn.pruning import Step, display


def lines(monkeypatch, last, sure, seconds):
    """What is printed if an iteration takes so many seconds."""
    out, clock = io.StringIO(), iter(range(100, 10_000, seconds))
    monkeypatch.setattr(display.time, "monotonic", lambda: next(clock))
    show = display.SearchDisplay(Console(file=out, width=40))
    for i in range(6, 10):
        show(Step(i, 0, (16, 8), 2.5, 3.0), last, sure)
    show.close()
    return out.getvalue().splitlines()


def test_a_line_now_and_then(monkeypatch):
    assert lines(monkeypatch, 20, False, 15) == [
        "iteration 6/20  3.00x less  loss 2.5000  K 16 8",
        "iteration 7/20  3.00x less  loss 2.5000  K 16 8  left at most 0:03:15",
        "iteration 8/20  3.00x less  loss 2.5000  K 16 8  left at most 0:03:00",
        "iteration 9/20  3.00x less  loss 2.5000  K 16 8  left at most 0:02:45",
    ]
    assert [line.split()[1] for line in lines(monkeypatch, 20, False, 4)] == ["6/20", "9/20"]


def test_where_the_end_is_known_it_is_told(monkeypatch):
    assert lines(monkeypatch, 12, True, 15)[-1] == "iteration 9/12  3.00x less  loss 2.5000  K 16 8  left 0:00:45"
