"""Tables with the paper's numbers beside ours, and verdicts that three seeds have to agree on."""

from dataclasses import replace

import pytest

from lab.engine.losses import Less, Variant, loss_table, paper_difference
from lab.engine.records import Cell, Claim, Reproduction, UsedModel, verdict
from lab.engine.tables import seeds_of, table_of, what_was_run
from lab.experiments.synthetic import task_run
from lab.scales import LAPTOP
from lab.tasks import Parity

CELLS = (
    Cell("d=3", "standard", (4.5, 4.7, 4.6), paper=2.68),
    Cell("d=3", "right", (0.5, None, 0.25), digits=1, percent=True),
    Cell("d=4 & more", "standard", (None, None, None)),
)
RECORD = Reproduction("it", "Table 9", "what it is", "laptop", "a text", (0, 1, 2), CELLS, (), ("A note.",), {}, ())


def test_a_table_has_the_mean_the_range_and_the_paper():
    found = table_of(RECORD)
    assert tuple(found.head) == ("", "standard", "paper", "right")
    assert found.rows[0] == ("d=3", "4.600 (4.500 to 4.700)", "2.68", "37.5% (25.0% to 50.0%), 1 of 3 without")
    assert found.rows[1] == ("d=4 & more", "none", "", "")
    assert "| d=3 | 4.600 (4.500 to 4.700) | 2.68 |" in found.markdown()
    assert "- A note." in found.markdown()
    latex = found.latex()
    assert r"d=4 \& more & none &  &  \\" in latex
    assert r"37.5\%" in latex
    assert seeds_of(CELLS[1], RECORD.values) == "0: 50.0%, 1: none, 2: 25.0%"


def used(run, tokens=3_072_000):
    return UsedModel("model", "key", run.to_dict(), {}, 1, tokens, {}, None, None, "", {}, {})


def test_a_record_says_what_its_models_have_in_common():
    standard, selective = (LAPTOP.run(kind) for kind in ("standard", "selective"))
    record = replace(RECORD, data="texts/enwik8-clean", models=(used(standard), used(selective)))
    assert what_was_run(record) == "enwik8-clean, d=3, context 512, rotary positions, 3.1 million tokens"
    other = LAPTOP.run("selective", d=4, context=256, positions="learned")
    record = replace(record, models=(used(standard), used(other, 15_000_000)))
    assert what_was_run(record) == "enwik8-clean"
    task = task_run(Parity(bits=8), "standard", d=1, batch=16, steps=1200, every=4, lr=3e-3)
    assert what_was_run(replace(record, models=(used(task),))) == "8 bits, d=1, at most 1,200 steps, 16 rows in a step"
    assert what_was_run(RECORD) == "a text"
    assert "; a text)" not in table_of(RECORD).title  # nothing was trained, so that no scale is named


@pytest.mark.parametrize(
    ("values", "settings", "said"),
    [
        ((0.1, 0.12, 0.11), {}, "holds"),
        ((-0.1, -0.12, -0.11), {}, "fails"),
        ((0.1, -0.01, 0.11), {}, "too early to tell"),
        ((0.05, 0.09, 0.14), {"than": 0.005}, "holds"),
        ((0.02, 0.05, 0.09), {}, "too early to tell"),  # the standard error is more than a third of the mean
        ((0.02, 0.05, 0.07), {}, "holds"),
        ((0.0,), {}, "one run: no difference"),
        ((0.1,), {}, "one run: as claimed"),
        ((-0.1, -0.2), {}, "2 runs: against the claim"),
        ((-0.1, 0.2), {}, "2 runs: they disagree"),
        ((0.1, None, 0.1), {}, "too early to tell (a seed is missing)"),
        ((None,), {}, "not measured"),
        ((0.1, 0.12, 0.11), {"side": "below"}, "fails"),
        ((0.1, 0.12, 0.11), {"caveat": "of tiny models"}, "holds, of tiny models"),
        ((512.0,), {"than": 512.0, "side": "equal", "exact": True}, "holds"),
        ((513.0,), {"than": 512.0, "side": "equal", "exact": True}, "fails"),
    ],
)
def test_a_difference_needs_three_seeds_and_a_small_standard_error(values, settings, said):
    claim = Claim("It is so.", values, "a number", **settings)
    assert verdict(claim, "laptop") == said
    assert claim.exact or verdict(claim, "smoke").startswith("not tested (smoke)")


@pytest.mark.parametrize(
    ("those", "said"),
    [
        (("d=3", "standard"), "loss of standard less that of selective, nats"),
        (("d=4", "selective"), "loss of d=4 less that of d=3, nats"),
        (("d=4", "standard"), "loss of d=4, standard less that of d=3, selective, nats"),
    ],
)
def test_a_claim_names_what_differs(those, said):
    places = (("d=3", "selective"), those)
    experiment = loss_table(
        "it",
        "Table 9",
        "it",
        variants=lambda scale: [Variant(*place, scale.run(place[1])) for place in places],
        claims=lambda scale: [Less("It is less.", *places)],
    )
    cells = tuple(Cell(*place, (float(number),)) for number, place in enumerate(places))
    found = experiment.concluded(replace(RECORD, seeds=(0,), cells=cells)).claims
    assert [(claim.what, claim.values) for claim in found] == [(said, (1.0,))]


def test_the_papers_difference_is_that_of_the_size_or_the_mean():
    losses = {8: (2.96, 2.90), 12: (2.68, 2.64)}
    assert paper_difference(losses, 8) == pytest.approx(0.06)
    assert paper_difference(losses, 3) == pytest.approx(0.05)
