"""`with selattn.evicting(model, budgets)`: a stock model evicts for a while, and is as before afterwards."""

import pytest
import torch
from torch.testing import assert_close
from transformers import DynamicCache

import selattn
from selattn import Policy
from selattn.cache import SelectiveCache
from selattn.errors import SelattnError
from tests.models.stock import test_t5
from tests.models.stock.families import tiny, tokens


class Newest(Policy):
    """The newest earlier token is evicted."""

    needs_f = False

    def rank(self, kept):
        return kept.position.to(kept.score.dtype)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "gemma2", "t5"])
@pytest.mark.parametrize(
    "policy", ["tova", "h2o", "window+4", Newest()], ids=lambda policy: getattr(policy, "name", policy)
)
def test_it_is_what_a_model_made_selective_does(family, policy):
    make = test_t5.tiny if family == "t5" else lambda: tiny(family)
    model, ids = make(), tokens(2, 20)
    how = {"max_new_tokens": 8, "do_sample": False}
    before = model.generate(ids, use_cache=False, **how)
    kind, config = type(model), model.config
    with selattn.evicting(model, budgets=6, policy=policy):
        assert type(model) is kind
        found = model.generate(ids, **how)
        given = {"decoder_input_ids": ids} if family == "t5" else {}
        with torch.no_grad():
            logits = model(ids, use_cache=False, **given).logits
    assert type(model) is kind
    assert model.config is config
    assert torch.equal(model.generate(ids, use_cache=False, **how), before)
    made = selattn.make_selective(make(), selection=None)
    limits = {"cache_budgets": 6, "cache_policy": policy}
    assert torch.equal(found, made.generate(ids, **how, **limits))
    with torch.no_grad():
        assert_close(logits, made(ids, use_cache=False, **given, **limits).logits)


def test_after_an_exception_the_model_is_as_before():
    model, ids = tiny("llama"), tokens(1, 12)
    state = {name: dict(vars(module)) for name, module in model.named_modules()}

    def interrupted(*_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), selattn.evicting(model, 4):
        model.generate(ids, max_new_tokens=3, do_sample=False, stopping_criteria=[interrupted])
    after = {name: dict(vars(module)) for name, module in model.named_modules()}
    assert after.keys() == state.keys()
    for name, found in after.items():
        assert found.keys() == state[name].keys(), name
        assert found.get("config") is state[name].get("config"), name
    with torch.no_grad():
        assert isinstance(model(ids, use_cache=True).past_key_values, DynamicCache)


def test_what_is_refused():
    model, ids = tiny("llama"), tokens(1, 12)
    with selattn.evicting(model, [4, 6]):
        with torch.no_grad():
            cache = model(ids, use_cache=True).past_key_values
        assert isinstance(cache, SelectiveCache)
        assert [layer.budget for layer in cache.layers] == [4, 6]
        with pytest.raises(SelattnError, match=r"^this model evicts already"), selattn.evicting(model, 4):
            pass
        assert isinstance(model(ids, use_cache=True).past_key_values, SelectiveCache)  # the outer one is in force
    with pytest.raises(SelattnError, match=r"^this cache keeps F, and this attention function does not know it"):
        model(ids[:, :1], past_key_values=cache)
    cases = [
        ((None, "tova"), r"^evicting\(\) needs budgets"),
        ((4, "selective"), r"^the policy 'selective' needs F, and this model selects nothing"),
        (([4, 4, 4], "tova"), r"^3 budgets do not fit a model of 2 layers"),
        ((1, "tova"), r"^a budget must be a whole number of at least 2 tokens"),
    ]
    for given, message in cases:
        with pytest.raises(SelattnError, match=message), selattn.evicting(model, *given):
            pass
        assert "forward" not in vars(model)
    model.forward = model.forward
    with pytest.raises(SelattnError, match=r"^the model's forward was replaced"), selattn.evicting(model, 4):
        pass
    del model.forward
    with pytest.raises(SelattnError, match=r"is selective already"), selattn.evicting(selattn.make_selective(model), 4):
        pass
