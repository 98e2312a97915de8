"""What may not be asked for when a model is loaded: to read weights that can run code, and to cut its layers up."""

from __future__ import annotations

from typing import Any

from torch import nn

from selattn.errors import SelattnError

_OWN_HEAD = "tensor parallelism would give each rank a selecting head of its own"


def check_loading(options: dict[str, Any]) -> None:
    """Raise for arguments of `from_pretrained` that a selective model cannot be loaded with; safetensors are set."""
    if options.setdefault("use_safetensors", True) is not True:
        raise SelattnError("selattn reads weights from safetensors only: leave use_safetensors out")
    across = options.get("distributed_config") or {}
    for given in (options, across if isinstance(across, dict) else vars(across)):
        _refuse_splitting(given)


def _refuse_splitting(given: dict[str, Any]) -> None:
    """Sharding (FSDP2) gathers a layer's weights before it runs; to cut a layer or the model up is another thing."""
    if given.get("tp_plan") or (given.get("tp_size") or 1) > 1:
        raise SelattnError(f"{_OWN_HEAD}: leave it out")
    if (given.get("pp_size") or 1) > 1:
        raise SelattnError("selattn models cannot be split into the stages of a pipeline: leave pp_size out")


def check_whole(model: nn.Module) -> None:
    """Raise for a model whose weights are spread over processes.

    transformers says so in `_tp_size`, also in versions whose shards are plain tensors; others leave DTensors.
    """
    if (getattr(model, "_tp_size", None) or 1) > 1:
        raise SelattnError(f"{_OWN_HEAD}: load the model whole")
    if any(type(parameter).__name__ == "DTensor" for parameter in model.parameters()):
        raise SelattnError(
            f"the weights of {type(model).__name__} are spread over processes: make it selective first, and shard it "
            "then, by FSDP2 and not by tensor parallelism"
        )
