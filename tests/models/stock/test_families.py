"""Every family that is understood: equal to the stock model without selection, to the paper's sketch with it."""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

import selattn
from selattn.cache import POLICIES
from selattn.models.stock.families import FAMILIES
from tests.models.stock.families import QUICK, greedy, literal, tiny, tokens

AttentionInterface.register("literal", literal)
AttentionMaskInterface.register("literal", eager_mask)

DECODERS = [name for name, family in FAMILIES.items() if not family.seq2seq]
families = pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in DECODERS]
)


@families
def test_strength_0_is_the_stock_model(name):
    model, ids = tiny(name).double(), tokens(2, 30)  # so that nothing but a wrong formula makes a difference
    with torch.no_grad():
        stock = model(ids).logits
        selattn.make_selective(model, strength=0.0)
        assert_close(model(ids).logits, stock, atol=1e-6, rtol=0)
        selattn.make_standard(model)
        assert torch.equal(model(ids).logits, stock)


@families
def test_strength_1_is_the_papers_sketch(name):
    model, ids = tiny(name), tokens(2, 30)
    model.set_attn_implementation("literal")
    with torch.no_grad():
        wanted = model(ids).logits
        model.set_attn_implementation("eager")
        stock = model(ids).logits
        selattn.make_selective(model)
        got = model(ids).logits
    assert_close(got, wanted, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(got, stock, atol=1e-2)  # something was selected


@families
def test_gradients_reach_every_parameter(name):
    model, ids = selattn.make_selective(tiny(name), memory_epsilon=0.1), tokens(2, 30)
    result = model(ids, labels=ids)
    result.loss.backward()
    assert_close(result.loss, result.lm_loss + result.memory_loss)
    silent = [n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    # Of a row of experts some may have had no token, and no position is as far as the table goes.
    assert not [n for n in silent if "expert" not in n and "wpe" not in n]


@families
def test_left_padding_changes_nothing(name):
    model, ids = selattn.make_selective(tiny(name)), tokens(2, 24)
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        both = model(ids, attention_mask=mask, position_ids=positions).logits
        alone = model(ids[1:, 9:]).logits
    assert_close(both[1:, 9:], alone, atol=1e-4, rtol=1e-4)


@families
def test_every_way_of_generating(name):
    """Prompt lookup and an assistant give the greedy text of full forwards, beams are scored as those score them.

    In double precision: words that come again have nearly the same F, and who of them leaves would be up to rounding.
    """
    model, other = (selattn.make_selective(tiny(name, seed=seed, eos_token_id=None).double()) for seed in (0, 3))
    ids, how = tokens(1, 12), {"max_new_tokens": 8, "do_sample": False, "cache_budgets": [6, 11]}
    wanted = greedy(model, ids, 8, cache_budgets=[6, 11])
    assert torch.equal(model.generate(ids, **how), wanted)
    assert torch.equal(model.generate(ids, prompt_lookup_num_tokens=3, **how), wanted)
    assert torch.equal(model.generate(ids, assistant_model=other, **how), wanted)
    done = model.generate(ids, num_beams=3, output_scores=True, return_dict_in_generate=True, **how)
    with torch.no_grad():
        logits = model(done.sequences, use_cache=False, cache_budgets=[6, 11]).logits.log_softmax(-1)
    told = logits[0, 11:-1].gather(-1, done.sequences[0, 12:, None]).sum() / 8
    assert_close(done.sequences_scores[0], told.float(), atol=1e-4, rtol=1e-4)


@families
def test_left_padded_rows_are_generated_as_alone(name):
    model, ids = selattn.make_selective(tiny(name, eos_token_id=None)), tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    how = {"max_new_tokens": 6, "do_sample": False, "cache_budgets": [6, 11], "pad_token_id": 0}
    both = model.generate(ids, attention_mask=mask, **how)
    assert torch.equal(both[1, 12:], model.generate(ids[1:, 5:], **how)[0, 7:])
    assert torch.equal(both[0], model.generate(ids[:1], **how)[0])


QUICK_AND_SLOW = [QUICK, pytest.param([name for name in DECODERS if name not in QUICK], marks=pytest.mark.slow)]


@pytest.mark.parametrize("names", QUICK_AND_SLOW)
def test_saved_folders_in_fresh_processes(names, tmp_path):
    """With selattn each gives the text that it gave here; without it transformers refuses each by its type."""
    ids, texts = tokens(1, 12), {}
    for name in names:
        model = selattn.make_selective(tiny(name, eos_token_id=None))
        model.save_pretrained(tmp_path / name)
        texts[name] = model.generate(ids, max_new_tokens=8, do_sample=False, cache_budgets=6).tolist()
    load = f"A.from_pretrained({str(tmp_path)!r} + '/' + name)"
    program = f"""
import json, sys, torch
from transformers import AutoModelForCausalLM as A
told, ids = {{}}, torch.tensor({ids.tolist()})
for name in {list(names)}:
    try:
        {load}
    except ValueError as error:
        told[name] = [str(error)]
import selattn
for name in list(told):
    told[name].append({load}.generate(ids, max_new_tokens=8, do_sample=False, cache_budgets=6).tolist())
print(json.dumps(told))
"""
    environment = {**os.environ, "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    told = json.loads(done.stdout.splitlines()[-1])
    for name in names:
        refusal, text = told[name]
        assert f"selective_{name}" in refusal
        assert text == texts[name]


@families
@pytest.mark.parametrize("policy", POLICIES)
def test_decoding_equals_the_pruned_forward(name, policy):
    model, ids = selattn.make_selective(tiny(name)), tokens(2, 30)
    budgets = {"cache_budgets": [6, 11], "cache_policy": policy}
    with torch.no_grad():
        whole = model(ids, use_cache=False, **budgets).logits
        cache = model.new_cache([6, 11], policy)
        steps = [model(ids[:, :9], past_key_values=cache).logits, model(ids[:, 9:14], past_key_values=cache).logits]
        steps += [model(ids[:, i : i + 1], past_key_values=cache).logits for i in range(14, 30)]
        unpruned = model(ids, use_cache=False).logits
    assert_close(torch.cat(steps, 1), whole, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(whole, unpruned, atol=1e-3)
    assert cache.nbytes() < cache.full_nbytes()
