"""A model in numbers: the settings of its config, and its parameters by part."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedConfig

PARTS = ("embeddings", "positions", "attention", "selection projections", "mlp", "norms", "head", "other")

# The part that a parameter belongs to, by the first of these that occurs in its name.
_PARTS = {
    **dict.fromkeys(("embed_tokens", "wte", "embed_in"), "embeddings"),
    **dict.fromkeys(("embed_positions", "wpe"), "positions"),
    **dict.fromkeys(("selection_", "selecting_form"), "selection projections"),
    **dict.fromkeys(("norm", "ln_"), "norms"),
    **dict.fromkeys(("attention.", "self_attn.", "attn."), "attention"),
    "mlp.": "mlp",
    **dict.fromkeys(("lm_head", "embed_out"), "head"),
}


_SHAPE = (
    *("vocab_size", "max_position_embeddings", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "intermediate_size", "positions", "norm", "qk_norm", "mlp", "bias"),
    "tie_word_embeddings",
)


def parameters_by_part(model: nn.Module) -> dict[str, int]:
    """The number of parameters of each part, in the order of `PARTS`; what is tied is counted once."""
    counts = dict.fromkeys(PARTS, 0)
    for name, parameter in model.named_parameters():  # which names a tied parameter once
        counts[next((part for piece, part in _PARTS.items() if piece in name), PARTS[-1])] += parameter.numel()
    return counts


def settings(config: PreTrainedConfig) -> dict[str, Any]:
    """The settings that decide a model's shape, and those of its selection that differ from the paper's."""
    names = [name for name in _SHAPE if hasattr(config, name)]
    if getattr(config, "selects", False):
        usual = type(config)()
        names += [
            name
            for name in config.to_dict()
            if name.startswith("selection_") and getattr(config, name) != getattr(usual, name)
        ]
        names += ["memory_epsilon", "memory_tau"] if config.memory_epsilon else ["memory_epsilon"]
    return {name: getattr(config, name) for name in names}
