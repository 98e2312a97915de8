"""Eviction policies: the rule for ties, and policies of one's own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from selattn.cache import POLICIES, Kept, Policy, SelectiveCache, attend, make_policy
from selattn.cache.policies import H2O, KeepAll, Selective, Threshold, Tova, Window, import_policy
from selattn.errors import SelattnError
from selattn.ops import Selection
from selattn.ops.eviction import victim
from tests.cache.cases import assert_same_run, cases, positions, some_case


class EvenFirst(Policy):
    """Tokens at even positions leave first."""

    name = "even first"

    def rank(self, kept):
        return (kept.position % 2 == 0).to(kept.score.dtype)


class Contrary(Policy):
    """The token that was attended to most by a single query, and is forgotten least, leaves."""

    name = "contrary"

    def rank(self, kept):
        return kept.score - kept.f

    def update(self, score, weights):
        return torch.maximum(score, weights)


class ContraryHeads(Contrary):
    name = "contrary heads"
    per_head = True


class Oldest(H2O):
    """Made from a policy that the compiled library knows, with another rank that it does not know."""

    name = "oldest"

    def rank(self, kept):
        return -kept.position.to(kept.score.dtype)


class InBursts(Policy):
    """After every eighth token, all at odd positions leave at once."""

    needs_f = False

    def rank(self, kept):
        return -kept.position.to(kept.score.dtype)

    def leaves(self, kept):
        return (kept.position.amax(-1, keepdim=True) % 8 == 7) & (kept.position % 2 == 1)


OWN = (EvenFirst, Contrary, ContraryHeads, Oldest)


@pytest.mark.parametrize("budget", [None, 12, 100])
@pytest.mark.parametrize("prompt", [1, 17])
def test_slots_that_are_emptied_in_bursts(budget, prompt):
    """A token in a high slot is still seen when those below are empty."""
    case = some_case(InBursts(), budget, size=40)
    want = case.pruned().output
    assert_close(case.pieces(*range(prompt, 40)).output, want, rtol=0, atol=1e-12)


def test_a_policy_of_that_name():
    assert sorted(POLICIES) == ["h2o", "selective", "tova", "window", "window+4"]
    for name, kind in POLICIES.items():
        assert make_policy(name) == kind()
        assert kind().compiled() is not None
    assert isinstance(SelectiveCache(1, 4).policy, Selective)
    own = EvenFirst()
    assert SelectiveCache(1, 4, own).layers[0].policy is own


def test_policies_with_parameters():
    assert make_policy("window+8") == Window(sinks=8)
    assert make_policy("window+4") == Window(4) != make_policy("window") == Window()
    assert make_policy("threshold=0.5") == Threshold(tau=0.5)
    assert make_policy(H2O(recent=0.25)).recent == 0.25
    assert make_policy(Tova) == Tova()
    for policy in (Selective(), H2O(), Tova(), Window(), Window(7), Threshold(2.5), KeepAll()):
        assert make_policy(policy.name) == policy
    assert import_policy("selattn.cache.policies:Tova") == Tova()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(-1), "sinks must be a whole number"),
        (lambda: H2O(1.5), r"in \[0, 1\]"),
        (lambda: Threshold(float("nan")), "at least 0"),
        (lambda: make_policy("threshold=much"), "not a number"),
        (lambda: make_policy(3), "a name or a selattn.Policy, not int"),
        (lambda: import_policy("no.such:Thing"), "cannot import"),
        (lambda: import_policy("math:pi"), "no selattn.Policy"),
        (lambda: import_policy("selattn.cache.policies:Threshold"), "without arguments"),
    ],
)
def test_policies_that_cannot_be_made(make, message):
    with pytest.raises(SelattnError, match=message):
        make()


def test_what_a_policy_of_ones_own_needs_is_seen_by_itself():
    assert Contrary.needs_weights
    assert Contrary.needs_f
    assert not EvenFirst.needs_weights


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("slective", "unknown eviction policy 'slective' (did you mean 'selective'?): choose "),
        ("h20", "unknown eviction policy 'h20' (did you mean 'h2o'?): choose "),
        ("lru", "unknown eviction policy 'lru': choose "),
    ],
)
def test_an_unknown_policy(name, message):
    for make in (make_policy, lambda name: SelectiveCache(2, 8, name)):
        with pytest.raises(SelattnError) as caught:
            make(name)
        assert str(caught.value) == message + ", ".join([*POLICIES, "none", "threshold=TAU"])


def test_none_keeps_all():
    """Budgets are then not in force, in the cache and in the full forward."""
    cache = SelectiveCache(2, [4, 8], "none")
    assert [layer.budget for layer in cache.layers] == [None, None]
    case = some_case("none", budget=3)
    whole = case.pruned().output
    assert torch.equal(whole, case.plain())
    assert_close(case.pieces(4, 5, 6, layer=cache.layers[0]).output, whole, rtol=0, atol=1e-12)


@st.composite
def full_layers(draw):
    """Positions in any order with empty places between, and few different numbers, so that ties are common."""
    places = draw(st.integers(1, 9))
    position = draw(st.permutations(range(places)).map(list))
    for empty in draw(st.sets(st.integers(0, places - 1), max_size=places - 1)):
        position[empty] = -1
    numbers = st.lists(st.sampled_from((-1.0, -0.0, 0.0, 0.5, 7.0)), min_size=places, max_size=places)
    return position, draw(numbers), draw(numbers), draw(st.integers(2, 10))


@pytest.mark.parametrize("policy", [*POLICIES.values(), EvenFirst, Contrary])
@given(full_layers())
def test_who_leaves(policy, layer):
    """The highest rank; of equals not the first token, then the oldest; whatever the order of the places."""
    position, score, f, budget = layer
    kept = Kept(torch.tensor([[position]]), *(torch.tensor([[x]]) for x in (score, f)), budget)
    rank = policy().rank(kept)[0, 0].tolist()
    taken = [c for c, p in enumerate(position) if p >= 0]
    highest = max(rank[c] for c in taken)
    equal = [position[c] for c in taken if rank[c] == highest]
    want = min((p for p in equal if p != 0), default=0)
    assert position[victim(policy(), kept).item()] == want

    other = torch.randperm(len(position))
    moved = Kept(*(x[..., other] for x in kept[:3]), budget)
    assert moved.position[0, 0, victim(policy(), moved)].item() == want


def test_all_equal_the_second_token_leaves_first():
    """With nothing selected every F is 0: the first token stays, then the oldest goes."""
    case = some_case(selection=Selection(), strength=0.0, budget=3, size=6)
    for run in (case.whole(), case.whole(compiled=False), case.one_by_one()):
        assert run.kept[0] == [[[0]], [[0, 1]], [[0, 1, 2]], [[0, 2, 3]], [[0, 3, 4]], [[0, 4, 5]]]


@pytest.mark.parametrize("policy", OWN)
@given(st.data())
def test_a_policy_of_ones_own_runs_in_every_way(policy, data):
    case = data.draw(cases(("h2o",)))
    case.policy = policy()
    want = case.one_by_one()
    assert_same_run(case, case.whole(), want)
    assert_same_run(case, case.pieces(*data.draw(st.sets(st.integers(0, case.size), max_size=3))), want)
    drafting = case.layer()
    drafting.activate_past_recording()
    for begin in range(0, case.size, 3):
        attend(drafting, case.cut(begin, begin + 5), case.rules)
        drafting.crop(-max(0, min(2, case.size - begin - 3)))
    assert drafting.get_seq_length() == case.size
    layer = case.layer()
    case.pieces(layer=layer)
    assert positions(drafting) == positions(layer)  # how many slots are empty depends on the way


def test_a_policy_of_ones_own_does_what_it_says():
    case = some_case(EvenFirst(), budget=3, size=7)
    kept = [[0], [0, 1], [0, 1, 2], [0, 1, 3], [1, 3, 4], [1, 3, 5], [3, 5, 6]]
    assert case.whole().kept[0] == case.one_by_one().kept[0] == [[row] for row in kept]


def test_an_inherited_policy_is_not_run_by_the_library():
    case, plain = (some_case(policy, budget=3, size=9, selection=None) for policy in (Oldest(), "window"))
    plain.tokens = case.tokens
    assert Oldest().compiled() is None
    assert [row[0] for row in case.whole().kept[0]] == [row[0] for row in plain.whole().kept[0]]


def test_a_policy_without_a_rank_is_refused():
    class Nothing(Policy):
        name = "nothing"

    with pytest.raises(SelattnError, match=r"the policy Nothing has no rank\(kept\)"):
        some_case(Nothing()).whole()


@pytest.mark.parametrize("selection", [None, Selection()], ids=["standard", "selective"])
def test_heads_of_h2o_keep_different_tokens(selection):
    case = some_case("h2o", size=30, selection=selection)
    run = case.one_by_one()
    assert sum(a != b for row in run.kept for a, b in row) > 20
    assert_same_run(case, run, case.simulate())


def test_h2o_keeps_the_latest_half():
    case = some_case("h2o", size=30, budget=8)
    for row in case.whole().kept:
        for i, orders in enumerate(row):
            for held in orders:
                assert set(range(max(0, i - 3), i + 1)) <= set(held)


@pytest.mark.parametrize(("policy", "budget", "want"), [
    ("window+4", 6, [0, 1, 2, 3, 10, 11]),
    ("window+4", 5, [0, 1, 2, 3, 11]),
    ("window+4", 3, [0, 1, 11]),  # no room for 4 and the latest: as many of the first as fit
    ("window+4", 2, [0, 11]),
    ("window", 4, [8, 9, 10, 11]),
])  # fmt: skip
def test_windows(policy, budget, want):
    case = some_case(policy, budget)
    for run in (case.whole(), case.whole(compiled=False), case.one_by_one(), case.pieces(4)):
        assert all(row[-1] == [want] for row in run.kept)
