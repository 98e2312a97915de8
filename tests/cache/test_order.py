"""Which tokens are kept, at every step, and what comes out: every fast way does what the slow simulation does."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selattn.cache import POLICIES
from selattn.ops import Fixed, Selection, Strided
from selattn.utils import native
from tests.cache.cases import assert_same_run, cases, in_strips, some_case
from tests.ops.cases import examples

each_policy = pytest.mark.parametrize("policy", POLICIES)
small = st.integers(1, 7)


def test_the_library_is_there():
    """Or what follows would compare Python with Python."""
    assert native.unavailable() is None


@each_policy
@examples(2)
@given(st.data())
def test_fast_ways_are_the_simulation(policy, data):
    case = data.draw(cases((policy,)))
    want = case.simulate()
    assert_same_run(case, case.whole(), want)
    assert_same_run(case, case.whole(compiled=False), want)
    assert_same_run(case, case.one_by_one(), want)
    assert_same_run(case, case.pieces(*data.draw(st.sets(st.integers(0, case.size), max_size=4))), want)


CORNERS = {
    "paper": {},
    "standard": {"selection": None},
    "several masks": {"selection": Selection((3, 0))},
    "several masks, no shift": {"selection": Selection((1, 2), shift=False)},
    "a mask for each head": {"selection": Selection((0, 1, 2, 3), protect_first=False)},
    "separate form": {"separate": 2},
    "separate form, one mask": {"separate": 1},
    "separate form, no shift": {"separate": 4, "selection": Selection(shift=False)},
    "unprotected": {"selection": Selection(2, protect_first=False, protect_self=False, shift=False)},
    "no relu": {"selection": Selection((1, 3), relu=False), "strength": 0.5},
    "window": {"selection": Selection((0, 3)), "window": 6},
    "strided": {"selection": None, "pattern": Strided(3, "split")},
    "fixed": {"selection": Selection((1, 2)), "pattern": Fixed(4, 1, "second")},  # some rows see nothing
}


@pytest.mark.parametrize(
    ("corner", "policy"),
    [*itertools.product(CORNERS, POLICIES), *((corner, "selective-per-head") for corner in CORNERS)],
)
def test_corners_are_the_simulation(corner, policy):
    """Each in every run, without padding: so that it is decoded by single steps."""
    options = dict(CORNERS[corner])
    masks = options.pop("separate", 0)
    case = some_case(policy, size=20, batch=3, **options)
    if masks:
        form = {f"selection_{name}": torch.randn(3, masks, 20, 5).double() for name in ("query", "key")}
        case.tokens = case.tokens._replace(**form)
    want = case.simulate()
    for run in (case.whole(), case.whole(compiled=False), case.one_by_one(), case.pieces(3, 9, 10, 11)):
        assert_same_run(case, run, want)


@each_policy
@given(st.data())
def test_pieces_and_strips_of_any_size_are_the_simulation(policy, data):
    """A prompt at once, which the cache cuts itself."""
    case = data.draw(cases((policy,), most=30))
    want = case.simulate()
    with in_strips(piece=data.draw(small), strip=data.draw(small)):
        assert_same_run(case, case.pieces(), want)
        assert_same_run(case, case.whole(), want)
        assert_same_run(case, case.whole(compiled=False), want)


@each_policy
@given(st.data())
def test_each_packed_document_is_pruned_alone(policy, data):
    case = data.draw(cases((policy,), kinds=("packed", "packed", "full", "padded"), most=30))
    want = case.simulate()
    with in_strips(piece=512, strip=data.draw(st.sampled_from((3, 128)))):
        assert_same_run(case, case.whole(), want)
        assert_same_run(case, case.whole(compiled=False), want)


@each_policy
@given(st.data())
def test_exactly_one_token_leaves_at_each_step_past_the_budget(policy, data):
    case = data.draw(cases((policy,)))
    for run in (case.whole(), case.one_by_one()):
        for row, documents in zip(run.kept, case.documents, strict=True):
            real = [held for held, document in zip(row, documents, strict=True) if document is not None]
            for order in range(len(real[0]) if real else 0):
                before = set()
                for i, held in enumerate(real):
                    now = set(held[order])
                    assert len(now) == min(i + 1, case.budget)
                    assert i in now  # a token attends to itself
                    assert now <= before | {i}  # nobody comes back
                    before = now
