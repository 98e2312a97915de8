"""What a table of texts says: questions text by text, where they hold, and the table of the page."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from lab.engine.records import Reproduction, joined
from lab.experiments.texts import POLICIES, RowLosses, cells_of
from lab.experiments.texts_claims import (
    MEAN,
    Setting,
    conclude,
    questions,
    same,
    searched,
    sorted_questions,
    texts_table,
)
from lab.results import results_pages
from lab.scales import SELECTIVE, STANDARD
from selattn.utils.records import write_record

GRID = {STANDARD: ["H2O", "TOVA", "Window+4"], SELECTIVE: list(POLICIES)}
AT = 32
WHOLE = "With everything kept, selective attention has a smaller loss than standard attention."
BEST = (
    "Pruned by F to 32 tokens a layer, selective attention has a smaller loss than standard attention with as many, "
    "under its best policy."
)


def one_seed(seed, gains, noise=0.0):
    """The record of a seed whose selective model is ahead by `gains` of each text."""
    found = {}
    for kind, names in GRID.items():
        settings = [Setting(kind), *(Setting(kind, p, how) for p in names for how in (searched(AT), same(AT)))]
        for setting in settings:
            pruned = {"": 0.0, "F": 0.01, "Window+4": 0.02, "TOVA": 0.05, "H2O": 0.08}[setting.policy]
            ahead = {text: (gain + noise if kind == SELECTIVE else 0.0) - pruned for text, gain in gains.items()}
            found[setting] = RowLosses({text: (4.0 - a, 4.2 - a, 4.1 - a) for text, a in ahead.items()})
    measured = SimpleNamespace(texts=list(gains), at=AT, found=found, recall={}, factor=lambda *_: 3.0 + noise)
    cells = tuple(cells_of(measured, GRID, {"the memory loss": "there was no time"}))
    tokens = {**dict.fromkeys(gains, "a checksum"), "search": "another"}
    settings = {"source": "mixture", "rows": 3, "search_rows": 2, "joined": [], "tokens": tokens}
    details = {"policies": GRID, "at": AT, "losses": [{"of": seed}]}
    return Reproduction(
        "texts-pair", "open: other texts", "losses", "laptop", "mixture", (seed,), cells, (), (), settings, (), details
    )


@pytest.fixture(scope="module")
def record():
    seeds = [
        one_seed(n, {"news": 0.1, "plays": noise, "novels": -0.1}, noise) for n, noise in enumerate((0, 0.01, -0.01))
    ]
    whole = joined(joined(seeds[0], seeds[1]), seeds[2])
    assert whole.details["losses"] == [{"of": 0}, {"of": 1}, {"of": 2}]
    return conclude(whole)


def test_a_question_is_answered_text_by_text(record):
    found = {question.text: question.verdicts("laptop") for question in questions(record)}
    assert found[WHOLE] == {"news": "holds", "plays": "too early to tell", "novels": "fails"}
    assert found["Selective attention pruned by F keeps its own loss with less than half the memory."] == dict.fromkeys(
        ("news", "plays", "novels"), "holds"
    )
    best = {question.text: question for question in questions(record)}[BEST]
    assert best.values["news"] == pytest.approx((0.11, 0.12, 0.10))  # Window+4 costs 0.02, F 0.01
    assert len(record.claims) == 2 * len(found)


def test_questions_are_sorted_by_where_they_hold(record):
    found = sorted_questions(record)
    assert any(
        line.startswith("In selective attention F evicts better than Window+4") for line in found["on every text"]
    )
    (line,) = (line for line in found["on some"] if line.startswith(WHOLE))
    assert "Holds on news; fails on novels; too early to tell on the other 1 (0.000 ± 0.008 nats below" in line
    assert not found["fails"]
    one = sorted_questions(conclude(one_seed(0, {"news": 0.1, "plays": 0.2})))
    assert [where for where, lines in one.items() if lines] == ["too early to tell"]
    assert f"{WHOLE} As claimed on 2 of 2" in one["too early to tell"][0]


def test_one_table_has_all_texts_models_and_policies(record):
    table = texts_table(record)
    assert table.head == ("", "news", "plays", "novels", MEAN)
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["standard, kept"][0] == "4.100 ± 0.000"
    assert rows["selective, kept"][0] == "**-0.100** ± 0.006"
    assert rows["standard, H2O, 32 a layer, searched"][0] == "**+0.080** ± 0.000"
    assert rows["the memory loss: not run (there was no time)"] == ("not run",) * 4
    alone = texts_table(one_seed(0, {"news": 0.1}))
    assert {row[0]: row[1] for row in alone.rows}["selective, kept"] == "-0.100 ± 0.000"  # over rows, and no verdict


def test_the_page_begins_with_what_travels(record, tmp_path):
    write_record(tmp_path / "laptop/texts-pair.json", record, [0, 1, 2])
    page = results_pages(tmp_path)["results.md"]
    places = [page.index(f"### {title}") for title in ("Holds on every text", "Holds on some", "Fails", "Too early")]
    assert places == sorted(places)
    assert places[-1] < page.index("### Texts, models and policies") < page.index("## The paper's claims")


def test_records_of_other_texts_are_not_joined(record):
    other = one_seed(3, {"news": 0.1, "plays": 0.0, "novels": -0.1})
    assert len(joined(record, other).seeds) == 4
    tokens = {**other.settings["tokens"], "news": "another checksum"}
    with pytest.raises(Exception, match="cannot be in one record: they differ in tokens"):
        joined(record, replace(other, settings={**other.settings, "tokens": tokens}))
