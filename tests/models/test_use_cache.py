"""A forward pass gives a cache when `use_cache` is on, with gradients and without; and nobody learns through one."""

import copy

import pytest
import torch

from selattn.errors import SelattnError
from tests.models.tiny import VARIANTS, gradients, padded, tiny, token_ids

HOW = {"plain": {}, "pruned": {"cache_budgets": 4}, "h2o": {"cache_budgets": [4, 6], "cache_policy": "h2o"}}


def loop(model, ids, mask, borders=(6, 7, 8), **how):
    """A loop written by hand, as in transformers' own documentation: no use_cache, no torch.no_grad()."""
    cache, logits = None, []
    for begin, end in zip([0, *borders], [*borders, ids.shape[1]], strict=True):
        found = model(ids[:, begin:end], attention_mask=mask[:, :end], past_key_values=cache, **how)
        cache = found.past_key_values
        assert cache is not None
        logits.append(found.logits)
    return torch.cat(logits, 1)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_a_loop_by_hand_is_the_whole(how, gradient, training):
    model = tiny(positions="rotary").train(training)
    ids, mask = padded([token_ids(12, seed=1), token_ids(8, seed=2)], "left")
    with torch.set_grad_enabled(gradient):
        found, whole = loop(model, ids, mask, **how), model(ids, mask, use_cache=False, **how).logits
    torch.testing.assert_close(found[mask.bool()], whole[mask.bool()], rtol=0, atol=1e-10)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_a_pass_with_gradients_goes_on(changes):
    model, ids = tiny(**changes), token_ids(2, 12)
    torch.testing.assert_close(
        loop(model, ids, torch.ones_like(ids)), model(ids, use_cache=False).logits, rtol=0, atol=1e-10
    )


def test_a_cache_changes_no_gradient_and_no_loss():
    model, ids = tiny(memory_epsilon=0.1, hidden_dropout=0.0).train(), token_ids(2, 12)
    found = []
    for use_cache in (True, False, None):
        model.zero_grad()
        outputs = model(ids, labels=ids, use_cache=use_cache)
        assert (outputs.past_key_values is None) == (use_cache is False)
        outputs.loss.backward()
        found.append({"loss": outputs.loss, "kept": outputs.kept, **gradients(model)})
    for other in found[1:]:
        for name, x in found[0].items():
            assert torch.equal(x, other[name]), name


def test_who_wants_to_learn_through_a_cache_is_told():
    model, ids = tiny(), token_ids(1, 9)
    cache = model(ids[:, :6]).past_key_values
    for begin, end in ((6, 8), (8, 9)):
        outputs = model(ids[:, begin:end], past_key_values=cache, output_attentions=True)
        with pytest.raises(SelattnError, match="a cache cuts gradients off: pass the whole text in one forward"):
            outputs.logits.sum().backward()
        with pytest.raises(SelattnError, match="a cache cuts gradients off"):
            outputs.attentions[1].sum().backward()


def test_a_deferred_cache_is_a_cache():
    """Before anybody looked into it: copied, repeated, measured, cropped and forgotten."""
    model, ids = tiny(cache_budgets=5), token_ids(2, 9)
    whole = torch.cat([ids, ids[:, :1]], 1)
    with torch.no_grad():
        want = model(whole, use_cache=False).logits[:, -1:]
        bytes_of_one = model(ids).past_key_values.nbytes()

    def after(ids, cache):
        with torch.no_grad():
            return model(ids, past_key_values=cache).logits

    cache = model(ids).past_key_values
    copied = copy.deepcopy(cache)
    for each in (cache, copied):
        torch.testing.assert_close(after(ids[:, :1], each), want, rtol=0, atol=1e-10)
    assert model(ids).past_key_values.nbytes() == bytes_of_one
    cache = model(ids).past_key_values
    cache.batch_repeat_interleave(2)
    new = ids[:, :1].repeat_interleave(2, 0)
    torch.testing.assert_close(after(new, cache), want.repeat_interleave(2, 0), rtol=0, atol=1e-10)
    cache = model.model.new_cache()
    cache.activate_past_recording()
    model(whole, past_key_values=cache)
    cache.crop(-1)
    assert cache.get_seq_length() == 9
    torch.testing.assert_close(after(ids[:, :1], cache), want, rtol=0, atol=1e-10)
    cache = model(ids).past_key_values
    cache.reset()
    assert cache.get_seq_length() == 0
    assert cache.nbytes() == 0


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_a_compiled_training_step_makes_a_cache_too():
    torch._dynamo.reset()
    model, ids = tiny(), token_ids(2, 9)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    cache = compiled(ids, labels=ids).past_key_values
    with torch.no_grad():
        want = model(torch.cat([ids, ids[:, :1]], 1), use_cache=False).logits[:, -1:]
        torch.testing.assert_close(model(ids[:, :1], past_key_values=cache).logits, want, rtol=0, atol=1e-10)


def test_a_mask_that_contradicts_an_earlier_one_is_refused():
    model = tiny(positions="rotary")
    ids, mask = padded([token_ids(9, seed=1), token_ids(5, seed=2)], "left")
    with torch.no_grad():
        cache = model(ids[:, :8], mask[:, :8]).past_key_values
        with pytest.raises(SelattnError, match=r"counts \[8, 8\] tokens before these, and the cache holds \[8, 4\]"):
            model(ids[:, 8:], torch.ones_like(mask), past_key_values=cache)
        # With no mask the new tokens are real, and what was padding stays padding.
        found = model(ids[:, 8:], past_key_values=cache).logits
        torch.testing.assert_close(found, model(ids, mask, use_cache=False).logits[:, 8:], rtol=0, atol=1e-10)
