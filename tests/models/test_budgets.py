"""Budgets in the model: decoding and a full forward are one truth, and every way of generating is right."""

import json

import pytest
import torch
import torch._dynamo.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig

from selattn.cache import POLICIES, Budgets, make_policy
from selattn.cache.policies import Tova
from selattn.errors import SelattnError
from selattn.models import SelectiveForCausalLM
from tests.models.tiny import VOCABULARY, tiny

PAD, NEW = 0, 7
MODELS = {
    "paper": {},
    "rotary": {"positions": "rotary"},
    "gqa": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "standard": {"attention": "standard"},
    "mixed": {"attention": ["selective", "local:4"]},
}


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def prompts(batch: int, length: int, padding: list[int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Left-padded prompts and their mask."""
    ids = torch.randint(1, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
    mask = (torch.arange(length) >= torch.tensor(padding)[:, None]).long()
    return ids * mask, mask


def continued(model: SelectiveForCausalLM, ids: torch.Tensor, mask: torch.Tensor, **more) -> torch.Tensor:
    return model.generate(
        ids, attention_mask=mask, **{"max_new_tokens": NEW, "do_sample": False, "pad_token_id": PAD, **more}
    )


# "standard" has no F, by which tokens could leave.
PAIRS = [(name, policy) for name in MODELS for policy in POLICIES if (name, policy) != ("standard", "selective")]


@pytest.mark.parametrize(("name", "policy"), PAIRS)
@settings(max_examples=4)
@given(data=st.data())
def test_cached_decoding_is_the_full_forward(name, policy, data):
    model = tiny(**MODELS[name])
    batch, length = data.draw(st.integers(1, 5)), data.draw(st.integers(2, 12))
    padding = data.draw(st.lists(st.integers(0, length - 1), min_size=batch, max_size=batch))
    one = st.integers(2, length + NEW + 2)
    budgets = data.draw(one | st.lists(one, min_size=2, max_size=2))
    ids, mask = prompts(batch, length, padding, data.draw(st.integers(0, 99)))
    how = {"cache_budgets": budgets, "cache_policy": policy}

    text = continued(model, ids, mask, output_logits=True, return_dict_in_generate=True, **how)
    everything = torch.cat([mask, torch.ones(batch, NEW, dtype=mask.dtype)], -1)
    whole = model(text.sequences, attention_mask=everything, use_cache=False, **how).logits[:, length - 1 : -1]
    # generate() gives logits in fp32.
    torch.testing.assert_close(torch.stack(text.logits, 1), whole.float(), atol=1e-5, rtol=0)
    assert torch.equal(whole.argmax(-1), text.sequences[:, length:])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_budget_beyond_the_text_prunes_nothing_and_a_small_one_does(policy):
    model = tiny()
    ids, _ = prompts(2, 16, [0, 0], 1)
    free = model(ids, use_cache=False).logits
    torch.testing.assert_close(model(ids, use_cache=False, cache_budgets=16, cache_policy=policy).logits, free)
    pruned = model(ids, use_cache=False, cache_budgets=3, cache_policy=policy).logits
    torch.testing.assert_close(pruned[:, :3], free[:, :3])
    assert not torch.allclose(pruned[:, 3:], free[:, 3:], atol=1e-3)


def test_the_policy_none_keeps_everything():
    model = tiny()
    ids, mask = prompts(2, 9, [0, 3], 3)
    how = {"cache_budgets": 3, "cache_policy": "none"}
    assert torch.equal(continued(model, ids, mask, **how), continued(model, ids, mask))
    torch.testing.assert_close(model(ids, use_cache=False, **how).logits, model(ids, use_cache=False).logits)
    assert model(ids, **how).past_key_values.layers[0].budget is None


@pytest.mark.parametrize("policy", ["selective", "h2o", "tova"])
@pytest.mark.parametrize("budgets", [3, [4, 9]], ids=str)
def test_every_way_of_generating(policy, budgets):
    model, assistant = tiny(), tiny(seed=1)
    how = {"cache_budgets": budgets, "cache_policy": policy}
    ids, mask = prompts(1, 9, [0], 3)
    greedy = continued(model, ids, mask, **how)
    assert torch.equal(continued(model, ids, mask, use_cache=False, **how), greedy)
    assert torch.equal(continued(model, ids, mask, prompt_lookup_num_tokens=3, **how), greedy)
    assert torch.equal(continued(model, ids, mask, assistant_model=assistant, **how), greedy)
    ids, mask = prompts(2, 9, [4, 0], 4)
    beams = {"num_beams": 3, **how}
    assert torch.equal(continued(model, ids, mask, **beams), continued(model, ids, mask, use_cache=False, **beams))
    drawn = []
    for use_cache in (True, False):
        torch.manual_seed(5)
        drawn.append(continued(model, ids, mask, do_sample=True, use_cache=use_cache, **how))
    assert torch.equal(*drawn)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"cache_budgets": [3, 5, 7]},
        {"cache_budgets": 4, "cache_policy": "h2o"},
        {"cache_budgets": [3, 5, 7], "cache_policy": "h2o"},
    ],
    ids=str,
)
def test_drafts_of_fewer_layers(how):
    """By leaving the model early, or by an assistant that has fewer, to which a list of budgets does not apply."""
    model, (ids, mask) = tiny(num_hidden_layers=3), prompts(1, 9, [0], 3)
    greedy = continued(model, ids, mask, **how)
    for layer in (1, 2, 3):
        assert torch.equal(continued(model, ids, mask, assistant_early_exit=layer, **how), greedy)
    assistant = tiny(seed=1, num_hidden_layers=1)
    assert torch.equal(continued(model, ids, mask, assistant_model=assistant, **how), greedy)
    assert model.config.num_hidden_layers == 3


@pytest.mark.parametrize("layer", [0, 3, True, "1"])
def test_a_layer_that_does_not_exist_cannot_be_left(layer):
    ids, mask = prompts(1, 5, [0], 3)
    with pytest.raises(SelattnError, match="assistant_early_exit must be a layer, 1 to 2 here, not"):
        continued(tiny(), ids, mask, assistant_early_exit=layer)


@pytest.mark.parametrize("policy", ["tova", "window+4", Tova()], ids=str)
@pytest.mark.parametrize("budgets", [3, [3, 5], Budgets((3, 5))], ids=str)
def test_budgets_in_a_generation_config(budgets, policy, tmp_path):
    """Also saved and loaded; before the config's, behind those that are given."""
    model, (ids, mask) = tiny(cache_budgets=9), prompts(1, 9, [0], 3)
    want = continued(model, ids, mask, cache_budgets=budgets, cache_policy=policy)
    chosen = GenerationConfig(cache_budgets=budgets, cache_policy=policy)
    assert torch.equal(continued(model, ids, mask, generation_config=chosen), want)
    other = {"cache_budgets": 4, "cache_policy": "h2o"}
    assert torch.equal(
        continued(model, ids, mask, generation_config=chosen, **other), continued(model, ids, mask, **other)
    )
    model.generation_config = chosen
    assert torch.equal(continued(model, ids, mask), want)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "generation_config.json").read_text())["cache_budgets"] in (3, [3, 5])
    loaded = SelectiveForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    found = continued(loaded, ids, mask, return_dict_in_generate=True)
    assert torch.equal(found.sequences, want)
    assert found.past_key_values.budgets == Budgets.of(budgets)
    assert found.past_key_values.policy.name == make_policy(policy).name
    cache = loaded.model.new_cache(4, "h2o")  # a cache that is given has its own
    assert torch.equal(continued(loaded, ids, mask, past_key_values=cache), continued(model, ids, mask, **other))


def test_budgets_that_a_model_was_given_are_saved(tmp_path):
    """In its own generation config, of which transformers would read only what it knows itself."""
    model = tiny()
    ids, mask = prompts(2, 9, [0, 3], 2)
    model.generation_config.cache_budgets, model.generation_config.cache_policy = [3, 5], "h2o"
    want = continued(model, ids, mask)
    model.save_pretrained(tmp_path)
    loaded = SelectiveForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    found = continued(loaded, ids, mask, return_dict_in_generate=True)
    assert found.past_key_values.budgets == Budgets((3, 5))
    assert found.past_key_values.policy.name == "h2o"
    assert torch.equal(found.sequences, want)


def test_a_returned_cache_goes_on():
    model = tiny()
    ids, mask = prompts(1, 9, [0], 3)
    once = continued(model, ids, mask, cache_budgets=4)
    first = continued(model, ids, mask, cache_budgets=4, max_new_tokens=3, return_dict_in_generate=True)
    again = {"past_key_values": first.past_key_values, "max_new_tokens": NEW - 3, "cache_budgets": 4}
    assert torch.equal(continued(model, first.sequences, torch.ones_like(first.sequences), **again), once)


def test_budgets_in_the_config_are_in_force_everywhere(tmp_path):
    ids, mask = prompts(1, 9, [0], 3)
    plain, pruned = tiny(), tiny(cache_budgets=[3, 5], cache_policy="tova")
    how = {"cache_budgets": [3, 5], "cache_policy": "tova"}
    assert torch.equal(continued(pruned, ids, mask), continued(plain, ids, mask, **how))
    torch.testing.assert_close(pruned(ids).logits, plain(ids, **how).logits)
    pruned.save_pretrained(tmp_path)
    loaded = SelectiveForCausalLM.from_pretrained(tmp_path).eval()
    assert loaded.config.cache_budgets == [3, 5]
    assert torch.equal(loaded(ids).logits, pruned(ids).logits)


def test_training_with_budgets_in_force_reaches_every_weight():
    model = tiny(cache_budgets=4).train()
    ids, _ = prompts(2, 12, [0, 0], 3)
    with torch.enable_grad():
        model(ids, labels=ids).loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_the_decode_step_is_one_graph():
    model = tiny(positions="rotary")
    ids, _ = prompts(2, 6, [0, 0], 3)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(model.forward, fullgraph=True, backend=counter)
    caches = [model(ids, cache_budgets=4).past_key_values for _ in range(2)]
    for step in range(5):
        token = ids[:, step : step + 1]
        outputs = [
            run(token, past_key_values=cache, cache_budgets=4).logits
            for run, cache in zip((model, compiled), caches, strict=True)
        ]
        torch.testing.assert_close(*outputs)
    assert counter.frame_count == 1


@pytest.mark.parametrize("budgets", [pytest.param(None, marks=pytest.mark.slow), [4, 7000, 260]], ids=["none", "some"])
def test_compiled_steps_go_on_over_every_border_of_the_storage(budgets):
    """However many layers fill up at different times, few graphs are made."""
    model = tiny(positions="rotary", num_hidden_layers=len(budgets or "ab"), cache_budgets=budgets)
    ids, _ = prompts(2, 325, [0, 0], 3)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(model.forward, fullgraph=True, backend=counter)
    cache, found = model(ids[:, :250]).past_key_values, []
    for step in range(250, 325):
        found.append(compiled(ids[:, step : step + 1], past_key_values=cache).logits)
    torch.testing.assert_close(torch.cat(found, 1), model(ids, use_cache=False).logits[:, 250:], rtol=0, atol=1e-9)
    assert counter.frame_count <= 6


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"cache_budgets": [4, 4, 4]}, "3 budgets do not fit a model of 2 layers"),
        ({"cache_budgets": 1}, "at least 2 tokens"),
        ({"cache_policy": "selectve"}, "did you mean 'selective'"),
    ],
)
def test_wrong_settings(settings, says):
    ids, mask = prompts(1, 5, [0], 3)
    with pytest.raises(SelattnError, match=says):
        tiny(**settings)
    with pytest.raises(SelattnError, match=says):
        continued(tiny(), ids, mask, **settings)


def test_a_cache_of_another_kind_is_refused():
    model = tiny()
    ids, _ = prompts(2, 5, [0, 0], 3)
    cache = model(ids, cache_budgets=4).past_key_values
    with pytest.raises(SelattnError, match="holds a batch of 2, not 1"):
        model(ids[:1], past_key_values=cache, cache_budgets=4)
    with pytest.raises(SelattnError, match="was made for"):
        model(ids, past_key_values=cache, cache_budgets=5)
    with pytest.raises(SelattnError, match="2 layers and the model 3"):
        tiny(num_hidden_layers=3)(ids, past_key_values=cache, cache_budgets=4)
