"""An engine of vLLM in this process, and what its texts are compared with."""

import gc
import os
from contextlib import contextmanager

import torch

from selattn import SelectiveConfig, SelectiveForCausalLM

NEAR = 1e-4  # a gap between the two best logits below which either token may come first
BUDGETS = [6, 9]


def set_environment():
    """Everything in one process, quiet, on the cores that there are; before vLLM is imported."""
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="ERROR",
        HF_HUB_OFFLINE="1",
    )


@contextmanager
def engine(folder, **options):
    """An engine, and its memory given back afterwards."""
    from vllm import LLM

    usual = {"dtype": "float32", "enforce_eager": True, "max_num_seqs": 16, "skip_tokenizer_init": True}
    llm = LLM(str(folder), **{**usual, "max_num_batched_tokens": 2048, **options})
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def written(llm, prompts, count=16, **sampling):
    """The tokens that follow each prompt."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False, **sampling)
    found = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return [list(each.outputs[0].token_ids) for each in found]


def expected(model, prompt, count=16, **limits):
    """The same by `generate()`."""
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        ids = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False, pad_token_id=0, **limits)
    return ids[0, len(prompt) :].tolist()


def near_tie(model, prompt, one, other, **limits):
    """Whether rounding decides a text: the two best logits are nearly equal where it first differs, or full forwards
    write another one than the cache does, since two tokens were equally likely to be evicted.
    """
    at = next(i for i, (x, y) in enumerate(zip(one, other, strict=True)) if x != y)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + one[:at]]), use_cache=False, **limits).logits[0, -1]
    best = logits.topk(2)
    return float(best.values[0] - best.values[1]) < NEAR or int(best.indices[0]) == other[at]


def check(model, llm, prompts, count=16, ties=0, **limits):
    """Every text equals that of `generate()`, but for so many near-ties."""
    others = 0
    for prompt, found in zip(prompts, written(llm, prompts, count), strict=True):
        wanted = expected(model, prompt, count, **limits)
        if found != wanted:
            assert near_tie(model, prompt, wanted, found, **limits), (len(prompt), wanted, found)
            others += 1
    assert others <= ties
    return others


def random_prompts(lengths, vocabulary=61, seed=0):
    """Prompts of these lengths, of tokens that are not special."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, vocabulary, (length,), generator=generator).tolist() for length in lengths]


def saved_decoder(folder, seed=0, **settings):
    """A tiny decoder of ours, with sharp logits so that there is something to select; saved, and itself."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
    usual = {"max_position_embeddings": 96, "positions": "rotary", "cache_budgets": BUDGETS, "eos_token_id": 2}
    model = SelectiveForCausalLM(SelectiveConfig(**{**sizes, **usual, **settings})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8.0)
    model.save_pretrained(folder)
    return model
