"""What vLLM learns of us when it starts: the names of our models, and what to ask before one of them is built.

Its own Llama and the like are asked one thing, whether settings of selattn stand beside them, which they would ignore.
Models are imported when one of ours is asked for.
"""

from __future__ import annotations

from typing import Any

OWN = "SelectiveForCausalLM"
# Models of vLLM whose attention is replaced, each with its module; every one is tested. None has experts: vLLM 0.32
# does not read Mixtral as transformers 5 saves it.
STOCK = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MistralForCausalLM": "mistral",
    "Phi3ForCausalLM": "phi3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
}
SAVED, EVICTING = "Selective", "Selattn"  # before a stock name: a saved selective model; a stock one that only evicts


def register() -> None:
    """Tell vLLM our architectures; called in each of its processes, and harmless twice."""
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP
    from vllm.model_executor.models.registry import ModelRegistry

    import selattn.models  # noqa: F401  transformers learns the types of our configs

    ModelRegistry.register_model(OWN, f"selattn.vllm.decoder:{OWN}")
    MODELS_CONFIG_MAP[OWN] = OurConfig
    for stock in STOCK:
        for name in (SAVED + stock, EVICTING + stock):
            ModelRegistry.register_model(name, f"selattn.vllm.stock:{name}")
            MODELS_CONFIG_MAP[name] = OurConfig
        MODELS_CONFIG_MAP.setdefault(stock, StockConfig)


class OurConfig:
    """What vLLM calls before it builds one of our models; see `selattn.vllm.checks`."""

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Refuse what is not served, and choose how states are kept."""
        from selattn.vllm.checks import check, choose

        check(vllm_config)
        choose(vllm_config)

    @staticmethod
    def verify_and_update_model_config(model_config: Any) -> None:
        """Nothing: the whole config is checked."""


class StockConfig:
    """What vLLM calls before it builds one of its own models: budgets beside it would be ignored without a word."""

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Refuse our settings beside vLLM's own class."""
        from selattn.errors import SelattnError

        config = vllm_config.model_config
        if getattr(config.hf_config, "selattn", None) is not None:
            name = config.hf_config.architectures[0]
            raise SelattnError(
                f"{name} of vLLM would ignore the settings of selattn: name the architecture {EVICTING}{name}, or use "
                "selattn serve"
            )

    @staticmethod
    def verify_and_update_model_config(model_config: Any) -> None:
        """Nothing: the whole config is checked."""
