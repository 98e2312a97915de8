"""Attentions and F from a cache are over the tokens of the text, like those of a full forward, whoever has left."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selattn.cache import POLICIES
from selattn.errors import SelattnError
from tests.models.tiny import tiny, token_ids

LENGTH = 14
WANT = {"output_attentions": True, "output_f": True}


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@settings(max_examples=25)
@given(
    holes=st.sets(st.integers(1, LENGTH - 1), max_size=6) | st.just(set()),
    borders=st.sets(st.integers(1, LENGTH - 1), min_size=1),
    budgets=st.none() | st.integers(2, 9) | st.tuples(st.integers(2, 9), st.integers(2, 9)),
    policy=st.sampled_from(tuple(POLICIES)),
    kinds=st.sampled_from((["selective"], ["selective:4", "standard"], ["local:3", "selective"])),
)
def test_columns_are_tokens(holes, borders, budgets, policy, kinds):
    model, ids = tiny(attention=kinds), token_ids(2, LENGTH)
    mask = torch.ones_like(ids)
    mask[0, list(holes)] = 0
    how = {"cache_budgets": budgets, "cache_policy": policy, **WANT}
    whole = model(ids, mask, use_cache=False, output_evictions=True, **how)
    real, cache = mask.bool(), None
    for begin, end in itertools.pairwise(sorted({0, *borders, LENGTH})):
        turn = model(ids[:, begin:end], mask[:, :end], past_key_values=cache, use_cache=True, **how)
        cache = turn.past_key_values
        for layer, weights in enumerate(turn.attentions):
            want = whole.attentions[layer][:, :, begin:end, :end]
            rows = real[:, None, begin:end, None]
            torch.testing.assert_close(weights * rows, want * rows, rtol=0, atol=1e-10)
            f = turn.f[layer]
            if f is None:
                assert whole.f[layer] is None
                continue
            gone = (whole.evicted_at[layer][..., :end] <= begin - 1).all(1)[:, None, None] & real[:, None, None, :end]
            want = whole.f[layer][:, :, begin:end, :end].masked_fill(gone, torch.nan)
            rows = rows & real[:, None, None, :end]
            torch.testing.assert_close(f * rows, want * rows, rtol=0, atol=1e-10, equal_nan=True)


@pytest.mark.parametrize("how", [{}, {"prompt_lookup_num_tokens": 3}, {"num_beams": 2}], ids=str)
def test_columns_of_generated_text(how):
    """As transformers has them: one more for each token, and every row sums to 1."""
    model, ids = tiny(positions="rotary", cache_budgets=4), token_ids(1, 6)
    asked = {"output_attentions": True, "return_dict_in_generate": True, "do_sample": False, "pad_token_id": 0}
    found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, **asked, **how)
    text = found.sequences[:, :-1]
    whole = model(text, use_cache=False, output_attentions=True).attentions
    for step, layers in enumerate(found.attentions):
        for layer, weights in enumerate(layers):
            rows = slice(0, 6) if step == 0 else slice(5 + step, 6 + step)
            assert weights.shape[-2:] == (rows.stop - rows.start, rows.stop)
            torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
            if "num_beams" not in how:
                torch.testing.assert_close(weights, whole[layer][:, :, rows, : rows.stop], rtol=0, atol=1e-9)


def test_where_padding_stood_must_be_told():
    model, ids, mask = tiny(), token_ids(1, 6), torch.tensor([[0, 0, 1, 1, 1, 1]])
    cache = model(ids, mask).past_key_values
    with pytest.raises(SelattnError, match="earlier turns had padding: pass attention_mask"):
        model(ids[:, :1], past_key_values=cache, output_attentions=True)
