"""A GPT-2 of transformers as our GPT-2 variant: the same function, which selective attention can then change."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from selattn.errors import SelattnError
from selattn.models.causal_lm import SelectiveForCausalLM
from selattn.models.config import SelectiveConfig

# Our names for GPT-2's parts.
_PARTS = {
    "wte": ["model.embed_tokens"],
    "wpe": ["model.embed_positions"],
    "ln_1": ["attention_norm"],
    "attn.c_attn": ["attention.q_proj", "attention.k_proj", "attention.v_proj"],
    "attn.c_proj": ["attention.o_proj"],
    "ln_2": ["mlp_norm"],
    "mlp.c_fc": ["mlp.up_proj"],
    "mlp.c_proj": ["mlp.down_proj"],
    "ln_f": ["model.norm"],
    "lm_head": ["lm_head"],
}


def from_gpt2(model: GPT2LMHeadModel, attention: str | list[str] = "selective", **changes: Any) -> SelectiveForCausalLM:
    """A model with the weights of `model`, in its dtype, on its device and in its mode. Nothing is shared with it.

    Args:
        model: the GPT-2.
        attention: kind of attention of each layer; "standard" gives the logits of `model`.
        changes: further settings of `SelectiveConfig`, such as `selection_strength` or `memory_epsilon`. A part that
            GPT-2 does not have, such as a separate bilinear form, begins with its initial weights.
    """
    ours = SelectiveForCausalLM(config_from_gpt2(model.config, attention=attention, **changes))
    ours.to(model.device, model.dtype)  # type: ignore[arg-type]  # transformers hides what `to` takes
    ours.load_state_dict({**ours.state_dict(), **_renamed(model.state_dict())})
    ours.generation_config = copy.deepcopy(model.generation_config)
    return ours.train(model.training)


def config_from_gpt2(config: GPT2Config, **changes: Any) -> SelectiveConfig:
    """Our config for the same architecture; what our GPT-2 variant does not have is refused."""
    if config.activation_function not in ("gelu_new", "gelu_pytorch_tanh"):
        raise SelattnError(f"GPT-2's activation is gelu_new; a model with {config.activation_function} is not GPT-2")
    if not config.scale_attn_weights or config.scale_attn_by_inverse_layer_idx or config.add_cross_attention:
        raise SelattnError(
            "only GPT-2's own attention is supported: scale_attn_weights on, "
            "scale_attn_by_inverse_layer_idx and add_cross_attention off"
        )
    if config.embd_pdrop != config.resid_pdrop:
        raise SelattnError(
            f"embd_pdrop {config.embd_pdrop} and resid_pdrop {config.resid_pdrop} differ: "
            "our GPT-2 has one hidden_dropout for both"
        )
    same = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.n_embd,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "head_dim": config.n_embd // config.n_head,
        "intermediate_size": config.n_inner,
        "max_position_embeddings": config.n_positions,
        "norm_eps": config.layer_norm_epsilon,
        "attention_dropout": config.attn_pdrop,
        "hidden_dropout": config.resid_pdrop,
        "initializer_range": config.initializer_range,
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
    }
    return SelectiveConfig.gpt2(**{**same, **changes})


def _renamed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """GPT-2's weights under our names. Its linear layers are stored as [in, out], and q, k and v in one."""
    found = {}
    for name, weight in weights.items():
        *path, part, kind = name.replace("transformer.h.", "model.layers.").removeprefix("transformer.").split(".")
        if path and kind == "weight" and not part.startswith("ln"):
            weight = weight.T
        names = _PARTS[".".join([*path[3:], part]) if path else part]
        for ours, piece in zip(names, weight.chunk(len(names)), strict=True):
            found[".".join([*path[:3], ours, kind])] = piece
    return found
