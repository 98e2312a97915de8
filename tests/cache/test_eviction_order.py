"""Who leaves when: the public functions against plain Python and the operator."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import selattn
from selattn.cache import NEVER, POLICIES, Policy
from selattn.errors import SelattnError
from selattn.ops import Selection, Sequences
from tests.cache.cases import cases, some_case


@pytest.mark.parametrize("policy", POLICIES)
@given(st.data())
def test_the_order_is_what_a_simulation_does(policy, data):
    """Row by row, with padding and packed documents."""
    case = data.draw(cases((policy,), kinds=("full", "padded", "holes", "packed")))
    order, want = case.order(data.draw(st.sampled_from(("auto", "reference")))), case.simulate()
    for b, documents in enumerate(case.documents):
        for i, mine in enumerate(documents):
            held = selattn.kept_positions(order, i, case.sequences())[b]
            if mine is None:
                assert not held.any()
                continue
            places = [j for j, each in enumerate(documents) if each == mine]
            assert [[places.index(j) for j in row.nonzero().flatten()] for row in held] == want.kept[b][i]


@pytest.mark.parametrize("policy", POLICIES)
def test_it_is_what_visible_until_takes(policy):
    case = some_case(policy)
    q, k, v = case.tokens[:3]
    order = selattn.eviction_order(q, k, budget=case.budget, policy=policy)
    got = selattn.selective_attention(q, k, v, enable_gqa=True, visible_until=order)
    assert_close(got, case.simulate().output, rtol=0, atol=1e-9)


def test_all_rows_at_once_are_the_rows():
    case = some_case("h2o")
    order = case.order()
    every = selattn.kept_positions(order)
    assert every.shape == (2, 2, 12, 12)
    for i in range(12):
        assert torch.equal(every[:, :, i], selattn.kept_positions(order, i))
    assert (every.sum(-1) == torch.arange(1, 13).clamp(max=case.budget)).all()


class Newest(Policy):
    """The newest token leaves."""

    def rank(self, kept):
        return kept.position.float()


def test_a_policy_of_the_users_own():
    case = some_case(Newest())
    order = case.order()
    assert selattn.kept_positions(order, 11)[0, 0].nonzero().flatten().tolist() == [0, 1, 2, 3, 11]
    assert torch.equal(order, selattn.eviction_order(*case.tokens[:2], budget=5, policy=Newest))


def test_without_a_budget_nobody_leaves():
    case = some_case(budget=None)
    assert (case.order() == NEVER).all()
    assert selattn.kept_positions(case.order())[0, 0].equal(torch.ones(12, 12).tril().bool())


REFUSED = {
    "there are 3 queries and 4 keys: give whole sequences": {"query": torch.ones(1, 1, 3, 2)},
    "a budget must be a whole number of at least 2 tokens, not 1": {"budget": 1},
    "unknown eviction policy 'selectiv'": {"policy": "selectiv"},
    "the selecting head 2 does not exist": {"selection": Selection(2)},
    "query must be a torch tensor, not 3": {"query": 3},
    "sequences are for": {"sequences": Sequences.from_mask(torch.ones(1, 7).bool())},
}


@pytest.mark.parametrize("message", REFUSED)
def test_errors(message):
    good = {"query": torch.ones(1, 1, 4, 2), "key": torch.ones(1, 1, 4, 2), "budget": 2}
    with pytest.raises(SelattnError, match=f"^{message}"):
        selattn.eviction_order(**good | REFUSED[message])
    with pytest.raises(SelattnError, match=r"^there are 4 rows, 0 to 3, and no row 4$"):
        selattn.kept_positions(selattn.eviction_order(**good), 4)
