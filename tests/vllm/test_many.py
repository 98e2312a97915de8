"""Many requests of random lengths at once: at most one in a hundred differs, where rounding decides."""

import random
from pathlib import Path

import pytest
import torch

from selattn import SelectiveForCausalLM, evicting, make_selective
from tests.models.stock.families import tiny
from tests.vllm.serving import check, engine, random_prompts

pytestmark = pytest.mark.slow

COUNT, LONGEST = 200, 2000
LENGTHS = [random.Random(5).randrange(1, LONGEST + 1) for _ in range(COUNT)]
LONG = {"max_position_embeddings": 2100}
OPTIONS = {"max_model_len": 2040, "max_num_seqs": 64}


@pytest.mark.parametrize("piece", [64, 2048])
def test_our_decoder(piece):
    folder = Path(__file__).parents[2] / "zoo" / "memory-2048"
    model = SelectiveForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompts, budgets = random_prompts(LENGTHS, 3000), [32, 64, 128]
    overrides = {"cache_budgets": budgets}
    with engine(folder, hf_overrides=overrides, max_num_batched_tokens=piece, **OPTIONS) as llm:
        check(model, llm, prompts, ties=COUNT // 100, cache_budgets=budgets)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_saved_selective_models(tmp_path, name):
    model = make_selective(tiny(name, **LONG), selection=0, cache_budgets=[60, 90])
    model.save_pretrained(tmp_path)
    with engine(tmp_path, **OPTIONS) as llm:
        check(model, llm, random_prompts(LENGTHS), ties=COUNT // 100)


@pytest.mark.parametrize("policy", ["tova", "h2o"])
def test_a_stock_llama_that_only_evicts(tmp_path, policy):
    model = tiny("llama", **LONG)
    model.save_pretrained(tmp_path)
    settings = {"cache_budgets": [60, 90], "cache_policy": policy}
    overrides = {"architectures": ["SelattnLlamaForCausalLM"], "selattn": settings}
    with engine(tmp_path, hf_overrides=overrides, **OPTIONS) as llm, evicting(model, [60, 90], policy):
        check(model, llm, random_prompts(LENGTHS), ties=COUNT // 100)
