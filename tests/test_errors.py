"""A mistyped word gets the nearest one, or all that there are."""

from selattn.errors import advice, nearest, unknown

KNOWN = ("selective", "h2o", "tova")


def test_the_nearest_word():
    assert nearest("selectve", KNOWN) == "selective"
    assert nearest("xyz", KNOWN) is None


def test_what_is_said():
    assert advice("h20", KNOWN) == "did you mean 'h2o'?"
    assert advice("xyz", KNOWN) == "there are selective, h2o, tova"
    assert advice("xyz", KNOWN, "see --list") == "see --list"
    assert unknown("policy", "h20", KNOWN) == "unknown policy 'h20' (did you mean 'h2o'?): choose selective, h2o, tova"
    assert unknown("kind", "xyz", KNOWN, ["local:N"]) == "unknown kind 'xyz': choose local:N"
