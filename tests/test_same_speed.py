"""What tools/same_speed.py takes for slower, by versions whose times are known."""

import itertools

import pytest

from tools.same_speed import compare


class Timed:
    """A version that needs `seconds` for a call, times a factor for each turn in a row."""

    cases = ("a case",)

    def __init__(self, seconds, noise=(1.0,)):
        self.of_call, self.noise = seconds, itertools.cycle(noise)

    def seconds(self, case, calls):
        return self.of_call * calls * next(self.noise)


@pytest.mark.parametrize(("factor", "holds"), [(0.5, True), (1.0, True), (1.025, True), (1.04, False), (2.0, False)])
def test_a_quiet_machine(factor, holds):
    found = compare([Timed(0.01), Timed(0.01 * factor), Timed(0.01)], 0, rounds=9, seconds=0.1)
    assert found["ratio"] == pytest.approx(factor)
    assert found["calls"] == round(0.1 / (0.01 * min(factor, 1)))
    assert found["itself"] == 1
    assert found["holds"] is holds


def test_what_the_old_version_does_to_itself_is_allowed():
    noisy = (0.8, 1.3, 0.9, 1.2, 1.0)
    versions = [Timed(0.01, noisy), Timed(0.0104), Timed(0.01, noisy[::-1])]
    found = compare(versions, 0, rounds=9, seconds=0.1)
    assert found["itself_interval"][1] > 1.05
    assert found["holds"]
