"""What is not served is refused before a model is built, in words that say what to do; never silently wrong."""

import json
import time

import pytest
from vllm.engine.arg_utils import EngineArgs

from selattn import make_selective
from selattn.errors import SelattnError
from selattn.vllm.checks import check_version
from tests.models.stock.families import tiny
from tests.vllm.serving import BUDGETS, saved_decoder

DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
CONNECTOR = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}

REFUSED = {
    "tensor parallelism": {"tensor_parallel_size": 2},
    "pipeline parallelism": {"pipeline_parallel_size": 2},
    "context parallelism": {"tensor_parallel_size": 2, "decode_context_parallel_size": 2},
    "speculation": {"speculative_config": DRAFTS},
    "LoRA": {"enable_lora": True},
    "KV connector": {"kv_transfer_config": CONNECTOR},
    "KV offloading": {"kv_offloading_size": 1.0},
    "dtype of the KV cache": {"kv_cache_dtype": "bfloat16"},
    "asynchronous scheduling": {"async_scheduling": True},
    "pooling": {"runner": "pooling"},
    "fp16 on a CPU": {"dtype": "float16"},
    "no budgets are in force": {"hf_overrides": {"cache_budgets": None}},
    "needs F": {"hf_overrides": {"attention": ["standard"]}},
    "block size of shared prefixes": {"enable_prefix_caching": True, "block_size": 96, "max_num_batched_tokens": 90},
    "need chunked prefill": {"enable_prefix_caching": True, "enable_chunked_prefill": False},
}


def refusal(folder, **options):
    """What building the config raises."""
    usual = {"dtype": "float32", "max_model_len": 90, "skip_tokenizer_init": True, "max_num_batched_tokens": 96}
    with pytest.raises(Exception) as caught:  # noqa: PT011  vLLM wraps ours in its own
        EngineArgs(model=str(folder), **{**usual, **options}).create_engine_config()
    return str(caught.value)


@pytest.mark.parametrize("what", REFUSED)
def test_refused(tmp_path, what):
    saved_decoder(tmp_path)
    assert what in refusal(tmp_path, **REFUSED[what])


def test_sleep_mode(tmp_path):
    """On a CPU vLLM refuses it itself, so the check is asked directly."""
    from vllm.config import ModelConfig

    saved_decoder(tmp_path)
    config = EngineArgs(
        model=str(tmp_path), dtype="float32", max_model_len=90, skip_tokenizer_init=True
    ).create_engine_config()
    assert isinstance(config.model_config, ModelConfig)
    config.model_config.enable_sleep_mode = True
    from selattn.vllm.checks import refusals

    assert "sleep mode" in refusals(config)


def test_quantised_weights(tmp_path):
    saved_decoder(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "quantised weights" in refusal(tmp_path) or "fp8" in refusal(tmp_path)


def test_our_settings_beside_vllms_own_class(tmp_path):
    tiny("llama").save_pretrained(tmp_path)
    settings = {"cache_budgets": 8, "cache_policy": "tova"}
    found = refusal(tmp_path, hf_overrides={"selattn": settings})
    assert "would ignore the settings of selattn" in found
    assert "SelattnLlamaForCausalLM" in found


def test_transformers_backend(tmp_path):
    make_selective(tiny("llama"), cache_budgets=BUDGETS).save_pretrained(tmp_path)
    assert refusal(tmp_path, model_impl="transformers")


def test_overrides_that_lose_the_selection(tmp_path):
    make_selective(tiny("llama"), cache_budgets=BUDGETS).save_pretrained(tmp_path)
    assert "would drop" in refusal(tmp_path, hf_overrides={"selattn": {"cache_budgets": 8, "cache_policy": "tova"}})


def test_unknown_policy(tmp_path):
    saved_decoder(tmp_path)
    assert "unknown eviction policy" in refusal(tmp_path, hf_overrides={"cache_policy": "nothing"})


def test_versions():
    with pytest.raises(SelattnError, match="too old"):
        check_version("0.31.2")
    for version in ("0.32.0", "0.33.1", "0.40.0", "1.0.dev3"):
        check_version(version)


def test_other_models_do_not_notice(tmp_path):
    """A stock model gets vLLM's own class and cache, and the plugin costs little once transformers is there."""
    from selattn.vllm.plugin import register

    tiny("llama").save_pretrained(tmp_path)
    config = EngineArgs(model=str(tmp_path), dtype="float32", max_model_len=90, skip_tokenizer_init=True)
    made = config.create_engine_config()
    assert made.model_config.architecture == "LlamaForCausalLM"
    assert made.cache_config.mamba_block_size is None
    began = time.process_time()
    register()
    assert time.process_time() - began < 0.5
