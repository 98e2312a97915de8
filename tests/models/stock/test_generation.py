"""`generate()` of a model that was made selective: every way of decoding gives what a full forward gives."""

import copy
import pickle

import pytest
import torch
from transformers import DynamicCache, pipeline

import selattn
from selattn.errors import SelattnError
from tests.conversion.tiny import llama_folder
from tests.evaluation.folders import model_folder
from tests.models.stock.families import greedy, tiny, tokens

PRUNED = {"cache_budgets": [6, 11]}


@pytest.mark.parametrize("limits", [{}, PRUNED, {**PRUNED, "cache_policy": "h2o"}])
def test_greedy(limits):
    model, ids = selattn.make_selective(tiny("llama", eos_token_id=None)), tokens(2, 12)
    text = model.generate(ids, max_new_tokens=10, do_sample=False, **limits)
    assert torch.equal(text, greedy(model, ids, 10, **limits))


@pytest.mark.parametrize("how", [{"prompt_lookup_num_tokens": 3}, {"prefill_chunk_size": 5}, {"assistant": True}])
def test_other_ways_give_the_same_text(how):
    model, ids = selattn.make_selective(tiny("llama", eos_token_id=None)), tokens(1, 12)
    if how.pop("assistant", False):
        how = {"assistant_model": selattn.make_selective(tiny("llama", seed=3, eos_token_id=None))}
    text = model.generate(ids, max_new_tokens=10, do_sample=False, **PRUNED, **how)
    assert torch.equal(text, greedy(model, ids, 10, **PRUNED))


def test_beams_are_scored_as_full_forwards_score_them():
    model, ids = selattn.make_selective(tiny("llama", eos_token_id=None)), tokens(1, 12)
    done = model.generate(
        ids, max_new_tokens=6, num_beams=3, do_sample=False, output_scores=True, return_dict_in_generate=True, **PRUNED
    )
    with torch.no_grad():
        logits = model(done.sequences, use_cache=False, **PRUNED).logits.log_softmax(-1)
    told = logits[0, 11:-1].gather(-1, done.sequences[0, 12:, None]).sum() / 6
    torch.testing.assert_close(done.sequences_scores[0], told, atol=1e-4, rtol=1e-4)


def test_padded_batches():
    model, ids = selattn.make_selective(tiny("llama", eos_token_id=None)), tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    text = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, **PRUNED)
    alone = model.generate(ids[1:, 5:], max_new_tokens=8, do_sample=False, **PRUNED)
    assert torch.equal(text[1, 12:], alone[0, 7:])


def test_sampling_is_repeatable():
    model, ids = selattn.make_selective(tiny("llama", eos_token_id=None)), tokens(1, 12)
    texts = []
    for _ in range(2):
        torch.manual_seed(5)
        texts.append(model.generate(ids, max_new_tokens=10, do_sample=True, **PRUNED))
    assert torch.equal(*texts)


@pytest.mark.parametrize("policy", ["selective", "selective-per-head", "h2o", "tova-per-head"])
@pytest.mark.parametrize("selection", ["new", (0, 2)])
def test_every_form_with_policies_of_every_kind(selection, policy):
    """Several masks, of heads or of a form that has learned something: decoding equals the full pruned forward."""
    model, ids = selattn.make_selective(tiny("llama"), selection=selection), tokens(2, 24)
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "selecting_form" in name and not name.endswith("bias"):
            parameter.data.normal_(std=0.5)
    with torch.no_grad():
        whole = model(ids, use_cache=False, cache_policy=policy, **PRUNED).logits
        cache = model.new_cache(PRUNED["cache_budgets"], policy)
        steps = [model(ids[:, :9], past_key_values=cache).logits]
        steps += [model(ids[:, i : i + 1], past_key_values=cache).logits for i in range(9, 24)]
        unpruned = model(ids, use_cache=False).logits
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(whole, unpruned, atol=1e-3)


@pytest.mark.parametrize("kind", ["llama3", "yarn"])
def test_scaled_rotary_positions_are_kept(kind):
    """Of the stock model, at strength 0 and in a pruned cache."""
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 8}
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    plain, model, ids = tiny("llama"), tiny("llama", rope_parameters=rope), tokens(1, 20)
    with torch.no_grad():
        stock = model(ids).logits
        assert not torch.allclose(plain(ids).logits, stock, atol=1e-2)
        selattn.make_selective(model, strength=0.0)
        torch.testing.assert_close(model(ids).logits, stock, atol=1e-4, rtol=1e-4)
        cache = model.new_cache(20)
        steps = [model(ids[:, i : i + 1], past_key_values=cache).logits for i in range(20)]
    torch.testing.assert_close(torch.cat(steps, 1), stock, atol=1e-4, rtol=1e-4)


def test_a_plain_cache_is_refused():
    model, ids = selattn.make_selective(tiny("llama")), tokens(1, 12)
    with pytest.raises(SelattnError, match="does not keep F"):
        model(ids, past_key_values=DynamicCache())
    with pytest.raises(SelattnError, match="does not keep F"):
        model.generate(ids, max_new_tokens=2, cache_implementation="static")


def test_a_model_that_selects_nothing_has_the_other_policies():
    model, ids = tiny("llama", eos_token_id=None), tokens(1, 12)
    stock = model.generate(ids, max_new_tokens=8, do_sample=False)
    selattn.make_selective(model, selection=None)
    assert torch.equal(model.generate(ids, max_new_tokens=8, do_sample=False), stock)
    model.generate(ids, max_new_tokens=8, do_sample=False, cache_budgets=6, cache_policy="tova")
    with pytest.raises(SelattnError, match="needs F"):
        model.generate(ids, max_new_tokens=8, cache_budgets=6)


@pytest.mark.parametrize("ours", [True, False])
def test_a_pipeline_takes_model_and_tokenizer_as_they_are(ours, tmp_path, capfd):
    """What `load` gives, of our decoder and of a stock model, without a word about models that are not supported."""
    model_folder(tmp_path / "ours") if ours else llama_folder(tmp_path / "stock")
    found = selattn.load(tmp_path / ("ours" if ours else "stock"))
    model, tokens = found.model, found.tokenizer
    capfd.readouterr()
    texts = ["the cat sat", "one dog"]
    how = {"max_new_tokens": 4, "do_sample": False, "batch_size": 2}
    got = pipeline("text-generation", model=model, tokenizer=tokens)(texts, **how)
    assert "not supported" not in capfd.readouterr().err
    assert got == pipeline("text-generation", model=model, tokenizer=tokens.hf)(texts, **how)
    assert all(text in each["generated_text"] for text, (each,) in zip(texts, got, strict=True))
    assert tokens.encode("the cat") == tokens.hf("the cat", add_special_tokens=False).input_ids
    assert tokens.decode(tokens.encode("the cat")) == "the cat"
    for again in (copy.deepcopy(tokens), pickle.loads(pickle.dumps(tokens))):
        assert (again.fingerprint, again.path) == (tokens.fingerprint, tokens.path)
