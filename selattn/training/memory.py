"""Whether a run can fit into memory at all: a lower bound of what it needs, before anything of it is made.

A batch a thousand times too large is a slip of the keyboard. Without a look at it the machine would fill up for minutes
and then kill the process, or another one. What is counted is needed in any case; a run that passes may still need more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from selattn.models import SelectiveConfig
from selattn.models.loading import load
from selattn.training.config import RunConfig, TextData
from selattn.utils.distributed import local_size
from selattn.utils.memory import check_fits
from selattn.utils.tables import byte_size

_FP32 = 4
_COLUMNS = 2 * 8  # input_ids and labels of a token, int64


@dataclass(frozen=True)
class Sizes:
    """Of a model.

    Attributes:
        parameters: that are trained.
        vocabulary: V.
        layers: L.
        hidden: d_model.
        frozen: parameters that are not trained, of a teacher for example.
    """

    parameters: int
    vocabulary: int
    layers: int
    hidden: int
    frozen: int = 0


def check_memory(run: RunConfig, devices: int, device: torch.device, sizes: Sizes | None = None) -> None:
    """Raise if a step, or an evaluation, needs more than there is; without sizes the run says what they are."""
    parts = {what: needed for what, needed in needs(run, devices, sizes).items() if needed > 0}
    total = sum(parts.values())
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    if device.type == "cpu":  # which the processes of one machine share
        total *= local_size()
    largest = max(parts, key=lambda what: parts[what])
    check_fits(total, "this run needs", f"{byte_size(parts[largest])} for {largest}", free)


def needs(run: RunConfig, devices: int, sizes: Sizes | None = None) -> dict[str, int]:
    """Bytes that each process needs at the least, under what they are for and what makes them fewer."""
    model = sizes or _sizes(run)
    micro = min(run.batch.size, run.batch.micro or -(-run.batch.size // devices))
    rows = -(-run.batch.size // devices)
    evaluated = min(run.evaluation.batch, run.evaluation.rows)
    context, width = run.data.context, 2 if run.machine.precision == "bf16" else _FP32
    shards = devices if run.machine.shard == "fsdp" else 1
    # The logits, and what enters each layer, which the backward pass needs whatever is computed again.
    states = width * (model.vocabulary + model.layers * model.hidden)
    return {
        "the model with its gradients and AdamW's moments; make it smaller": 4 * _FP32 * model.parameters // shards,
        "weights that are not trained; take a smaller model": _FP32 * model.frozen,
        f"the {rows:,} rows of a step; set a smaller batch.size": rows * context * _COLUMNS,
        f"{micro:,} rows of {context:,} tokens at once; make batch.micro, the rows or the model smaller": (
            micro * context * states
        ),
        f"{evaluated:,} rows of an evaluation at once; set a smaller evaluation.batch": max(
            0, evaluated * context * width * model.vocabulary - micro * context * states
        ),
    }


def _sizes(run: RunConfig) -> Sizes:
    """Of the run's model. Not by a config, which holds a list of its layers, however many."""
    if run.start.model is not None:
        found = load(run.start.model).config.to_dict()
    else:
        found = {name: getattr(SelectiveConfig, name) for name in SelectiveConfig.__annotations__}
        vocabulary = run.data.vocabulary if isinstance(run.data, TextData) else run.data.vocab_size
        found |= {"vocab_size": vocabulary, "max_position_embeddings": run.data.context}
    found |= {name: value for name, value in run.model.items() if isinstance(value, int)}
    if found["num_key_value_heads"] is None:
        found["num_key_value_heads"] = found["num_attention_heads"]
    if found["intermediate_size"] is None:
        found["intermediate_size"] = 8 * found["hidden_size"] // 3
    return Sizes(_parameters(found), found["vocab_size"], found["num_hidden_layers"], found["hidden_size"])


def _parameters(model: dict[str, Any]) -> int:
    """The matrices, without what few models have."""
    heads = 2 * model["num_attention_heads"] + 2 * model["num_key_value_heads"]
    layer = heads * model["head_dim"] + 2 * model["intermediate_size"]
    return model["hidden_size"] * (model["vocab_size"] + model["num_hidden_layers"] * layer)
