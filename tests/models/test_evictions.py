"""`output_evictions`: when each token leaves, as a full forward tells it and as the cache does it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selattn import kept_positions
from selattn.cache import NEVER, POLICIES, make_policy
from selattn.errors import SelattnError
from tests.models.tiny import CONTEXT, tiny, token_ids

MODELS = {
    "paper": {},
    "gqa": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "several masks": {"num_attention_heads": 4, "selection_head": [1, 3]},
    "standard": {"attention": "standard"},
}


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


# "standard" has no F, by which tokens could leave.
PAIRS = [
    (name, policy)
    for name in MODELS
    for policy in (*POLICIES, "threshold=0.5")
    if name != "standard" or not make_policy(policy).needs_f
]


@pytest.mark.parametrize(("name", "policy"), PAIRS)
@settings(max_examples=3)
@given(data=st.data())
def test_what_is_kept_is_what_the_cache_holds_at_every_step(name, policy, data):
    model = tiny(**MODELS[name])
    length = data.draw(st.integers(2, CONTEXT))
    budgets = data.draw(st.lists(st.integers(2, length + 2), min_size=2, max_size=2))
    ids = token_ids(2, length, seed=data.draw(st.integers(0, 99)))
    how = {"cache_budgets": budgets, "cache_policy": policy}
    evicted_at = model(ids, output_evictions=True, **how).evicted_at

    cache = model.model.new_cache(budgets, policy)
    for i in range(length):
        model(ids[:, i : i + 1], past_key_values=cache, **how)
        for layer, at in zip(cache.layers, evicted_at, strict=True):
            for b, heads in enumerate(layer.position):
                for p, held in enumerate(heads):
                    stay = kept_positions(at, i)[b, p].nonzero().flatten().tolist()
                    assert stay == sorted(held[held >= 0].tolist())


def test_without_budgets_nobody_leaves():
    evicted_at = tiny()(token_ids(2, 9), output_evictions=True).evicted_at
    assert [tuple(at.shape) for at in evicted_at] == [(2, 1, 9)] * 2
    assert all(bool((at == NEVER).all()) for at in evicted_at)


def test_it_is_told_only_when_asked_for_and_of_whole_sequences():
    model = tiny()
    assert model(token_ids(1, 5), cache_budgets=3).evicted_at is None
    cache = model(token_ids(1, 5), cache_budgets=3, output_evictions=True).past_key_values
    with pytest.raises(SelattnError, match="leave the cache out"):
        model(token_ids(1, 5), cache_budgets=3, output_evictions=True, past_key_values=cache)


def test_the_f_of_a_token_is_gone_from_the_call_after_its_eviction_on():
    model, ids = tiny(), token_ids(1, 12)
    evicted_at = model(ids, cache_budgets=4, output_evictions=True).evicted_at
    cache = model.model.new_cache(4)
    for i in range(12):
        seen = model(ids[:, i : i + 1], past_key_values=cache, output_f=True, output_attentions=True)
        for f, weights, at in zip(seen.f, seen.attentions, evicted_at, strict=True):
            assert torch.equal(f[0, 0, -1].isnan(), at[0, 0, : i + 1] < i)
            assert torch.equal(weights[0, :, -1].amax(0) == 0, at[0, 0, : i + 1] <= i)
