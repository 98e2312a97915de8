"""A llama2.c checkpoint (Karpathy's `.bin`, version 0) as one of our models: the same function, standard attention.

    header   7 int32: d_model, MLP size, layers, heads, key-value heads, vocabulary (negative: untied head), context
    weights  fp32, one kind after another, each for all layers; then the rotary angles, which we compute ourselves

llama2.c rotates neighbouring pairs of a head's coordinates, ours are half a head apart: rows of W_q and W_k move.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selattn.errors import SelattnError
from selattn.models.causal_lm import SelectiveForCausalLM
from selattn.models.config import SelectiveConfig

_HEADER = struct.Struct("<7i")


def from_llama2c(path: str | Path, attention: str | list[str] = "standard", **changes: Any) -> SelectiveForCausalLM:
    """The model of a `.bin` file, in evaluation mode.

    Args:
        path: of the file.
        attention: kind of attention of each layer; "standard" is the function that was trained.
        changes: further settings of `SelectiveConfig`.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SelattnError(f"cannot read {path}: {error.strerror}") from None
    if len(data) < _HEADER.size:
        raise SelattnError(f"{path} is not a llama2.c checkpoint: it has no header")
    d, inner, layers, heads, groups, vocabulary, context = _HEADER.unpack_from(data)
    tied, vocabulary = vocabulary > 0, abs(vocabulary)
    if not (0 < groups <= heads <= d <= 1 << 20 and layers > 0 and inner > 0 and context > 0) or d % heads:
        raise SelattnError(f"{path} is not a llama2.c checkpoint of version 0: its sizes make no sense")
    head = d // heads
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("embed_tokens", (vocabulary, d)),
        ("attention_norm", (layers, d)),
        ("attention.q_proj", (layers, d, d)),
        ("attention.k_proj", (layers, groups * head, d)),
        ("attention.v_proj", (layers, groups * head, d)),
        ("attention.o_proj", (layers, d, d)),
        ("mlp_norm", (layers, d)),
        ("mlp.gate_proj", (layers, inner, d)),
        ("mlp.down_proj", (layers, d, inner)),
        ("mlp.up_proj", (layers, inner, d)),
        ("norm", (d,)),
        ("angles", (context, head)),
        *([] if tied else [("lm_head", (vocabulary, d))]),
    ]
    size = sum(math.prod(shape) for _, shape in shapes)
    if len(data) != _HEADER.size + 4 * size:
        raise SelattnError(
            f"{path} is not a whole llama2.c checkpoint: {len(data)} bytes, not {_HEADER.size + 4 * size}"
        )
    config = SelectiveConfig(
        **{
            "vocab_size": vocabulary,
            "hidden_size": d,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": groups,
            "head_dim": head,
            "intermediate_size": inner,
            "max_position_embeddings": context,
            "attention": attention,
            "positions": "rotary",
            "norm_eps": 1e-5,
            "qk_norm": False,
            "tie_word_embeddings": tied,
            "bos_token_id": 1,
            "eos_token_id": 1,  # its programs stop where the next document would begin
            **changes,
        }
    )
    model = SelectiveForCausalLM(config)
    numbers = np.frombuffer(data, "<f4", offset=_HEADER.size)
    model.load_state_dict({**model.state_dict(), **_named(numbers, shapes, head, tied)})
    return model.eval()


def _named(numbers: Any, shapes: list[tuple[str, tuple[int, ...]]], head: int, tied: bool) -> dict[str, Tensor]:
    """The weights under our names."""
    found: dict[str, Tensor] = {}
    begin = 0
    for name, shape in shapes:
        end = begin + math.prod(shape)
        weight = torch.from_numpy(numbers[begin:end].reshape(shape).copy())
        begin = end
        if name in ("embed_tokens", "norm"):
            found[f"model.{name}.weight"] = weight
        elif name == "lm_head":
            found["lm_head.weight"] = weight
        elif name != "angles":
            if name in ("attention.q_proj", "attention.k_proj"):
                pairs = weight.unflatten(1, (-1, head // 2, 2))  # [layers, heads, pairs, 2, d_model]
                weight = pairs.transpose(2, 3).flatten(1, 3)
            found |= {f"model.layers.{layer}.{name}.weight": part for layer, part in enumerate(weight)}
    if tied:
        found["lm_head.weight"] = found["model.embed_tokens.weight"]
    return found


def llama2c_files(folder: Path) -> tuple[Path, Path]:
    """The checkpoint and the tokenizer in a folder of llama2.c."""
    files = sorted(folder.glob("*.bin"))
    tokens = [file for file in files if file.name.startswith("tok")]
    models = [file for file in files if file not in tokens]
    if len(tokens) != 1 or len(models) != 1:
        raise SelattnError(
            f"{folder} has {len(models)} model .bin and {len(tokens)} tok*.bin: a llama2.c checkpoint is one of each"
        )
    return models[0], tokens[0]
