import pytest
from hypothesis import given
from hypothesis import strategies as st

from selattn.errors import SelattnError
from selattn.models.protocols import layer_kinds, parse_kind
from selattn.ops import Fixed, Strided
from tests.models.tiny import ALL_KINDS

NUMBERS = st.integers(1, 10**6)


@given(NUMBERS, NUMBERS)
def test_every_form_means_what_it_says(number, smaller):
    large, small = max(number, smaller), min(number, smaller)
    standard, selective = parse_kind("standard"), parse_kind("selective")
    assert (standard.selective, standard.window, standard.pattern) == (False, None, None)
    assert (selective.selective, selective.window, selective.pattern) == (True, None, None)
    assert parse_kind(f"selective:{number}").window == parse_kind(f"local:{number}").window == number
    assert parse_kind(f"selective:{number}").selective
    assert not parse_kind(f"local:{number}").selective
    assert parse_kind(f"strided:{number}").pattern == Strided(number)
    assert parse_kind(f"fixed:{large}:{small}").pattern == Fixed(large, small)


@given(st.lists(st.sampled_from(ALL_KINDS), min_size=1, max_size=5), st.integers(1, 20))
def test_the_list_is_repeated_over_the_layers(attention, layers):
    kinds = [kind.text for kind in layer_kinds(attention, layers)]
    assert kinds == (attention * layers)[:layers]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("selektive", r"unknown attention kind 'selektive' \(did you mean 'selective'\?\)"),
        ("linear", "unknown attention kind 'linear': choose selective or"),
        ("local", "'local' is not of the form local:WINDOW"),
        ("local:x", "'local:x' is not of the form local:WINDOW"),
        ("local:-1", "not of the form"),
        ("local:1:2", "not of the form"),
        ("standard:3", "not of the form standard"),
        ("fixed:4", "not of the form fixed:STRIDE:SUMMARY"),
        ("local:0", "'local:0': a window, stride or summary must be at least 1"),
        ("selective:0", "at least 1"),
        ("fixed:2:3", "summary of a fixed pattern must be 1 to its stride 2"),
        ("", "unknown attention kind ''"),
    ],
)
def test_what_is_no_kind_is_told_in_one_line(text, line):
    with pytest.raises(SelattnError, match=line) as caught:
        parse_kind(text)
    assert "\n" not in str(caught.value)
