"""One progress over all runs: shares of all of them, and runs that come up while an experiment measures."""

import pytest

from lab.engine.experiment import Need
from lab.engine.progress import Overview
from selattn.utils.progress import Progress
from tests.lab.tiny import tiny_run

NEED = Need(tiny_run())


class Told(Progress):
    """Remembers what is done of each work, and the texts."""

    def __init__(self):
        self.works, self.texts = [], []

    def begin(self, total, title="", done=0, **how):
        self.works.append([done])

    def advance(self, by=1, text=None):
        self.works[-1].append(self.works[-1][-1] + by)
        self.texts.append(text)


def carry_out(overview, name, first=0):
    part = overview.display(name, NEED)
    part.begin(4, "step", first)
    for _ in range(first + 1, 5):
        part.advance()
    part.end()


def test_every_run_is_a_share_of_all():
    told = Told()
    overview = Overview(told)
    overview.begin({"a": NEED, "b": NEED})
    carry_out(overview, "a")
    carry_out(overview, "b", first=2)
    assert told.works == [[0, 0, 12.5, 25, 37.5, 50, 75, 87.5, 100]]
    assert told.texts[2] == "run 1 of 2: a  step 2/4"
    assert told.texts[-1] == "run 2 of 2: b  step 4/4"


@pytest.mark.parametrize("planned", [{}, {"a": NEED}])
def test_a_run_that_comes_up_on_the_way_is_counted_by_itself(planned):
    told = Told()
    overview = Overview(told)
    overview.begin(planned)
    for name in planned:
        carry_out(overview, name)
    carry_out(overview, "with budgets")
    assert told.works[-1] == [0, 0, 25, 50, 75, 100]
    assert told.texts[-1].startswith("run 1 of 1: with budgets")
