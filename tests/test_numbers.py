"""The documents' numbers are those of the records, digits and rounding included; and the check would see it if not."""

import re
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.numbers import PAGES, ROOT, corrected, faults, measured, split
from tools.sources import Node, read_records, rounded

RECORDS = read_records(ROOT / "results")
SMALL = {
    "times": Node({"rows": [{"n": 1, "ratio": 0.7449, "share": 0.9996}, {"n": 2, "ratio": 4.9548}]}, "times"),
    "losses": Node({"seeds": [4.5, 4.75, 5.5], "summary": {"mean": 2.25, "min": 1.0, "max": 3.0}}, "losses"),
}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_numbers_of_a_page_are_those_of_its_records(path):
    assert faults(path.read_text(), RECORDS) == []


def other_digit(digit):
    return str((int(digit) + 1) % 10)


def sections(page):
    """The parts of a page from one heading to the next, each of which can be checked alone."""
    starts = {}
    for block in split(page):
        starts.setdefault(block.section, block.start)
    starts = [*starts.values(), len(page)]
    return [page[start:end] for start, end in pairwise(starts)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_any_other_digit_is_seen(path):
    """The last digit of each number that a record gives, changed alone, and in the list of sources as well."""
    for page in sections(path.read_text()):
        for block in split(page):
            covered = [match.span() for match in re.finditer(r"[\d.,]*\d", block.raw)] if block.kind == "table" else []
            listed = {line.text.partition(" = ")[0] for line in block.body if " = " in line.text}
            covered += [match.span("text") for match in measured(block) if match["text"] in listed]
            for start, end in covered:
                place = block.start + max(i for i in range(start, end) if block.raw[i].isdigit())
                changed = page[:place] + other_digit(page[place]) + page[place + 1 :]
                assert faults(changed, RECORDS)
                old, new = (text[block.start + start : block.start + end] for text in (page, changed))
                assert faults(changed.replace(f"\n{old} = ", f"\n{new} = "), RECORDS)


def page_of(text, *lines, kind="numbers"):
    return "# Title\n\nFrom `results/times.json` and `results/losses.json`.\n\n" + "\n".join(
        [text, f"<!-- {kind}", *lines, "-->", ""] if lines else [text, ""]
    )


@pytest.mark.parametrize(
    "text",
    ["It takes 0.7.", "7% of it.", "1.2x", "It is 8 times as fast.", "12 MB", "30 tokens/s", "off by 2e-9", "| 0.5 |"],
)
def test_what_looks_measured_needs_a_source(text):
    assert len(faults(page_of(text), SMALL)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "Two of 3.",
        "`0.7` of it",
        "    0.7",
        "```\n0.7\n```",
        "[a](b0.7)",
        "2^-24",
        "Apache-2.0",
        "1. A list",
        "Python 3.11",
    ],
)
def test_what_does_not_needs_none(text):
    assert faults(page_of(text), SMALL) == []


def test_in_a_block_that_names_a_record_every_number_counts():
    assert faults(page_of("At N = 512 with d=3 it has 17 (`results/times.json`)."), SMALL) == [
        "line 5: 17 has no source; say behind the block where it comes from"
    ]


def test_numbers_follow_their_sources():
    text = "It takes 0.74 where another takes 4.95, at 2 lengths."
    lines = ["0.74 = times.rows(n=1).ratio", "4.95 = slow", "2: a reason"]
    assert faults(page_of(text, "slow := times.rows[1].ratio", *lines), SMALL) == []
    assert faults(page_of(text, "slow := times.rows[1].ratio", *lines[1::-1], lines[2]), SMALL) != []


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("0.75 = times.rows(n=1).ratio", "0.75 is 0.74 in the record"),  # rounded twice: 0.7449, 0.745, 0.75
        ("0.75 = times.rows(n=3).ratio", "times['rows'] has no rows with {'n': 3}"),
        ("0.75 = times.rows().ratio", "times['rows'] has 2 rows with {}"),
        ("0.75 = times.rows[0].speed", "times['rows'][0] has no 'speed'"),
        ("0.75 = speeds.rows", "there is no record speeds"),
        ("0.75 = times.rows", "is not a number"),
        ("0.75 = 0.75", "reads no record"),
        ("0.75 = times.", "invalid syntax"),
        ("0.76 = times.rows(n=1).ratio", "0.75 stands where the sources go on with 0.76"),
        ("0.76: a reason", "0.76 is excused, but is not there"),
        ("0.75:", "neither TEXT = SOURCE nor TEXT: REASON"),
    ],
)
def test_what_is_wrong_is_said(line, what):
    assert what in "\n".join(faults(page_of("It takes 0.75 of it.", line), SMALL))


def test_a_source_too_many_is_seen():
    lines = ["0.74 = times.rows(n=1).ratio", "4.95 = times.rows(n=2).ratio"]
    assert faults(page_of("It takes 0.74.", *lines), SMALL) == [
        "line 5: nothing is left for 4.95 = times.rows(n=2).ratio"
    ]


def test_all_and_none_are_exact():
    assert "100% is 100.0%" in "".join(faults(page_of("100% of it.", "100% = times.rows(n=1).share"), SMALL))
    assert faults(page_of("100.0% of it.", "100.0% = times.rows(n=1).share"), SMALL) == []


def test_the_record_that_is_named_is_the_right_one():
    line = "0.74 = times.rows(n=1).ratio"
    assert faults(page_of("It takes 0.74 (`results/times.json`).", line), SMALL) == []
    assert faults(page_of("It takes 0.74 (`results/losses.json`).", line), SMALL) == [
        "line 5: its numbers are from results/times, which is not named there"
    ]
    assert faults(page_of("# Another section\n\nIt takes 0.74.", line), SMALL) != []


TABLE = ["N: {row.n:,}", "ratio: {row.ratio:.2f}", "losses: {spread(losses.seeds, 1)}"]


def test_a_table_is_what_its_record_gives():
    rows = (
        "| N | ratio | losses |\n| --- | --- | --- |\n| 1 | 0.74 | 4.9 (4.5 to 5.5) |\n| 2 | 4.95 | 4.9 (4.5 to 5.5) |"
    )
    page = page_of(rows, *TABLE, kind="table row in times.rows")
    assert faults(page, SMALL) == []
    for old, new in (("0.74", "0.75"), ("| 2 | 4.95 | 4.9 (4.5 to 5.5) |\n", ""), ("ratio |", "ratios |")):
        wrong = page.replace(old, new, 1)
        assert faults(wrong, SMALL) == ["line 5: the table is not what its record gives"]
        assert corrected(wrong, SMALL) == page
    missing = page.replace(rows + "\n", "")
    assert faults(missing, SMALL) == ["line 5: the table is not what its record gives"]
    assert corrected(missing, SMALL) == page
    # Neither the record nor the table: nothing is claimed. The table alone: it is.
    unnamed = {"losses": SMALL["losses"]}
    assert faults(missing, unnamed) == []
    assert faults(page, unnamed) == ["line 5: there is no record times"]


def test_correction_puts_in_what_records_have():
    page = page_of("It takes 0.75, and 0.1 is set.", "0.75 = times.rows(n=1).ratio", "0.1: a setting")
    right = page.replace("0.75", "0.74")
    assert corrected(page, SMALL) == right
    assert faults(right, SMALL) == []


def test_ranges_over_seeds():
    text = "They end at 4.9 (4.5 to 5.5)."
    sources = ["4.9 = mean(losses.seeds)", "4.5 = min(losses.seeds)", "5.5 = max(losses.seeds)"]
    assert faults(page_of(text, *sources), SMALL) == []
    table = page_of(
        "| all |\n| --- |\n| 2.25 (1.00 to 3.00) |", "all: {spread(losses.summary, 2)}", kind="table x in [0]"
    )
    assert faults(table, SMALL) == []


@given(st.floats(min_value=0, max_value=1e6, allow_nan=False), st.integers(0, 6), st.sampled_from(["", "%", "x"]))
def test_a_number_is_rounded_once(value, digits, mark):
    like = f"{1:.{digits}f}{mark}"
    text = rounded(value, like)
    if text.endswith("%") and not digits and "." in text:  # nearly all, or nearly none
        digits = 1
    error = Decimal(text.rstrip("%x").replace(",", "")) - Decimal(value) * (100 if mark == "%" else 1)
    assert abs(error) <= Decimal(1) / 2 / 10**digits
    assert rounded(value, text) == text
