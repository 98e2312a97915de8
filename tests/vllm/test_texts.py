"""Texts by vLLM equal those of `generate()`, token for token."""

import pytest
import torch

from selattn import NewForm, Selection, evicting, make_selective
from selattn.vllm.plugin import STOCK
from tests.models.stock.families import tiny
from tests.vllm.serving import BUDGETS, check, engine, random_prompts, saved_decoder

PROMPTS = random_prompts([1, 2, 3, 7, 17, 30, 41, 60])
LONGEST = {"max_model_len": 90}

OWN = {
    "heads share keys": {"num_key_value_heads": 2},
    "several masks": {"selection_head": [0, 2]},
    "each head evicts": {"selection_head": [0, 2], "num_key_value_heads": 2, "cache_policy": "selective-per-head"},
    "a separate form": {"selection_source": "separate"},
    "a new form": {"selection_source": "new", "selection_head": [0, 1]},
    "switches": {"selection_relu": False, "selection_protect_first": False, "selection_protect_self": False},
    "no shift, half strength": {"selection_shift": False, "selection_strength": 0.5},
    "kinds of layers": {"attention": ["selective:5", "local:4"]},
    "patterns": {"attention": ["selective", "strided:3"]},
    "learned positions": {"positions": "learned", "norm": "layernorm", "mlp": "gelu", "bias": True, "qk_norm": False},
    "scaled positions": {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0}},
    "h2o": {"cache_policy": "h2o", "num_key_value_heads": 2, "attention": ["standard"]},
    "one mask, several orders": {"cache_policy": "h2o", "num_key_value_heads": 2},
    "tova in each head": {"cache_policy": "tova-per-head", "num_key_value_heads": 2},
    "tied": {"tie_word_embeddings": True},
    "larger budgets than texts": {"cache_budgets": 4000},
}


@pytest.mark.parametrize("settings", OWN.values(), ids=OWN)
def test_our_decoder(tmp_path, settings):
    model = saved_decoder(tmp_path, **settings)
    with engine(tmp_path, **LONGEST) as llm:
        check(model, llm, PROMPTS, ties=1)


@pytest.mark.parametrize("piece", [16, 64, 2048])
def test_prompts_in_pieces(tmp_path, piece):
    model = saved_decoder(tmp_path)
    with engine(tmp_path, max_num_batched_tokens=piece, **LONGEST) as llm:
        check(model, llm, PROMPTS)


def test_compiled(tmp_path):
    model = saved_decoder(tmp_path)
    with engine(tmp_path, enforce_eager=False, **LONGEST) as llm:
        check(model, llm, PROMPTS)


def test_rows_are_used_again(tmp_path):
    """More requests than rows: a row still holds what another request has left."""
    model = saved_decoder(tmp_path)
    with engine(tmp_path, num_gpu_blocks_override=4, **LONGEST) as llm:
        check(model, llm, random_prompts(range(1, 40)))


def test_budgets_by_overrides(tmp_path):
    model = saved_decoder(tmp_path, cache_budgets=None)
    with engine(tmp_path, hf_overrides={"cache_budgets": [4, 12]}, **LONGEST) as llm:
        check(model, llm, PROMPTS, cache_budgets=[4, 12])


TYPES = {"gemma3": "gemma3_text"}


@pytest.mark.parametrize("module", STOCK.values())
def test_saved_selective_models(tmp_path, module):
    model = tiny(TYPES.get(module, module))
    make_selective(model, selection=0, cache_budgets=BUDGETS).save_pretrained(tmp_path)
    with engine(tmp_path, **LONGEST) as llm:
        check(model, llm, PROMPTS)


@pytest.mark.parametrize("compiled", [False, True])
def test_forms(tmp_path, compiled):
    model = make_selective(tiny("llama"), selection=NewForm(masks=2, deviation=2.0), cache_budgets=BUDGETS)
    for name, parameter in model.named_parameters():
        if "selecting_form.k_proj" in name:
            torch.nn.init.normal_(parameter, std=2.0)
    model.save_pretrained(tmp_path)
    with engine(tmp_path, enforce_eager=not compiled, **LONGEST) as llm:
        check(model, llm, PROMPTS)


def test_settings_of_a_saved_model(tmp_path):
    selection = Selection((1, 3), relu=False, shift=False)
    model = make_selective(tiny("qwen3"), selection=selection, strength=0.5, cache_budgets=7)
    model.save_pretrained(tmp_path)
    with engine(tmp_path, **LONGEST) as llm:
        check(model, llm, PROMPTS)


@pytest.mark.parametrize("policy", ["tova", "h2o", "window+4", "tova-per-head"])
@pytest.mark.parametrize("module", ["llama", "gemma2"])
def test_stock_models_that_only_evict(tmp_path, module, policy):
    model = tiny(module)
    model.save_pretrained(tmp_path)
    settings = {"cache_budgets": BUDGETS, "cache_policy": policy}
    overrides = {"architectures": [f"Selattn{type(model).__name__}"], "selattn": settings}
    with engine(tmp_path, hf_overrides=overrides, **LONGEST) as llm, evicting(model, BUDGETS, policy):
        check(model, llm, PROMPTS)
