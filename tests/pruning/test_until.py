"""What is said of a threshold that is no number of the right kind."""

import pytest

from selattn.cli._settings import parse_until
from selattn.errors import SelattnError
from selattn.pruning import Until


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tokens=1e3", "tokens must be a whole number above 0, not '1e3'"),
        ("tokens=0", "tokens must be a whole number above 0"),
        ("tolerance=-1", "tolerance must be a finite number of at least 0, not '-1'"),
        ("loss=nan", "loss must be a finite number of at least 0"),
        ("factor=inf", "factor must be a finite number above 0, not 'inf'"),
        ("factor=0", "factor must be a finite number above 0"),
    ],
)
def test_errors(text, says):
    with pytest.raises(SelattnError, match=says):
        parse_until([text])


def test_no_tolerance_is_a_tolerance():
    assert parse_until(["tolerance=0"]) == Until(tolerance=0.0)
