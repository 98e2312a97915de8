"""What is refused before a model of ours is built, and what is chosen for it.

The table of docs/serving.md has a line for each; tests/vllm/test_refusals.py asks for all of them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from vllm import __version__
from vllm.logger import init_logger
from vllm.platforms import current_platform

from selattn.errors import SelattnError
from selattn.models.config import SelectiveConfig
from selattn.vllm.plan import LayerPlan, layer_plans

OLDEST, NEWEST = (0, 32), (0, 33)  # versions of vLLM that are known
BORDER = 32  # block sizes are multiples of it, as vLLM prefers on CPUs

logger = init_logger("vllm.selattn")


def refusals(config: Any) -> dict[str, str]:
    """What is asked of vLLM and not served, each with what to do."""
    model, parallel, cache, scheduler = (
        config.model_config,
        config.parallel_config,
        config.cache_config,
        config.scheduler_config,
    )
    context = max(parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size)
    half = model.dtype == torch.float16 and current_platform.is_cpu()
    rope = getattr(model.hf_config, "rope_parameters", None) or {}
    found = {
        "context parallelism": (context > 1, "a state is not split: use --data-parallel-size"),
        "tensor parallelism": (
            parallel.tensor_parallel_size > 1,
            "a head selects for all others, and ranks would each take one of their own: use --data-parallel-size",
        ),
        "pipeline parallelism": (parallel.pipeline_parallel_size > 1, "use --data-parallel-size"),
        "dual batch overlap": (parallel.enable_dbo, "leave --enable-dbo out"),
        "speculation": (
            config.speculative_config is not None,
            "drafts that are rejected have already selected and evicted: leave --speculative-config out",
        ),
        "LoRA": (config.lora_config is not None, "merge the adapter into the model"),
        "a KV connector": (config.kv_transfer_config is not None, "states are not transferred"),
        "KV offloading": (bool(cache.kv_offloading_size), "a state is small: leave --kv-offloading-size out"),
        "sleep mode": (model.enable_sleep_mode, "it would drop the states of requests: leave --enable-sleep-mode out"),
        "another dtype of the KV cache": (
            cache.cache_dtype != "auto" or cache.mamba_cache_dtype != "auto" or cache.mamba_ssm_cache_dtype != "auto",
            "states have the dtype of the model, and F is fp32: leave the dtype of the cache out",
        ),
        "asynchronous scheduling": (scheduler.async_scheduling is True, "leave --async-scheduling out"),
        "pooling": (model.runner_type != "generate", "only generation is served"),
        "quantised weights": (model.quantization is not None, "use the model in bf16"),
        "fp16 on a CPU": (half, "use --dtype bfloat16 or --dtype float32"),
        "vLLM's Transformers backend": (model.model_impl == "transformers", "leave --model-impl out"),
        "dynamic rotary scaling": (
            rope.get("rope_type") == "dynamic",
            "its frequencies depend on the longest text, and those of vLLM do not",
        ),
    }
    return {name: advice for name, (asked, advice) in found.items() if asked}


def check(config: Any) -> None:
    """Raise for the first thing that is asked and not served."""
    check_version(__version__)
    for name, advice in refusals(config).items():
        raise SelattnError(f"{name} is not served with selattn: {advice}")
    check_overrides(config.model_config)
    plans_of(config)


def check_version(version: str) -> None:
    """Refuse a vLLM that is too old, and warn of one that is newer than what was tried."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers and numbers < OLDEST:
        raise SelattnError(f"vLLM {version} is too old for selattn: install {'.'.join(map(str, OLDEST))} or newer")
    if numbers > NEWEST:
        logger.warning("selattn was not tried with vLLM %s: `make test-vllm` says what changed", version)


def check_overrides(model: Any) -> None:
    """Raise if --hf-overrides takes the selection out of a saved selective model: it replaces a dict as a whole."""
    given = model.hf_overrides.get("selattn") if isinstance(model.hf_overrides, dict) else None
    if given is None:
        return
    from transformers import PreTrainedConfig

    saved = PreTrainedConfig.get_config_dict(model.hf_config_path or model.model)[0].get("selattn") or {}
    if lost := sorted(name for name, value in saved.items() if value is not None and name not in given):
        raise SelattnError(
            f"--hf-overrides would drop {', '.join(lost)} of the model's selattn settings: use selattn serve, which "
            "keeps them"
        )


def plans_of(config: Any) -> list[LayerPlan]:
    """The layers of the model that vLLM is about to serve."""
    found = config.model_config.hf_config
    if isinstance(found, SelectiveConfig) and found.positions == "learned":
        found.rope_parameters = None  # which vLLM fills in
    return layer_plans(found, config.model_config.max_model_len)


def choose(config: Any) -> None:
    """One block for each request; with shared prefixes one for each border, and borders not closer than budgets."""
    cache, scheduler = config.cache_config, config.scheduler_config
    scheduler.async_scheduling = False
    if current_platform.is_cuda_alike():
        from vllm.config import CUDAGraphMode

        config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE  # the layer reads lengths on the CPU
    if not cache.enable_prefix_caching:
        cache.mamba_cache_mode, cache.mamba_block_size = "none", config.model_config.max_model_len
        return
    if not scheduler.enable_chunked_prefill:
        raise SelattnError("shared prefixes need chunked prefill: leave --no-enable-chunked-prefill out")
    cache.mamba_cache_mode = "align"
    if not cache.user_specified_block_size:
        cache.block_size = border([plan.budget for plan in plans_of(config)])
        cache.user_specified_block_size = True
    cache.mamba_block_size = cache.block_size
    if scheduler.max_num_batched_tokens < cache.block_size:
        raise SelattnError(
            f"--max-num-batched-tokens must be at least the block size of shared prefixes, {cache.block_size}"
        )


def border(budgets: list[int]) -> int:
    """Tokens between two states that are kept of a prefix: there, a state costs no more than their keys and values."""
    return max(1, math.ceil(sum(budgets) / len(budgets) / BORDER)) * BORDER


def backend_of(config: Any) -> str:
    """Which implementation of ours computes, as the config names it."""
    if isinstance(config, SelectiveConfig):
        return config.backend
    return (getattr(config, "selattn", None) or {}).get("backend", "auto")
