"""The part of the models that transformers needs to load, save, place and checkpoint them, and their refusals."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from selattn.errors import SelattnError
from selattn.models.config import SelectiveConfig
from selattn.models.form import SelectingForm

_OWN_HEAD = "tensor parallelism would give each rank a selecting head of its own"
REENTRANT = "reentrant gradient checkpointing can lose gradients in silence: set use_reentrant=False"


class Recomputing:
    """Gradient checkpointing as in transformers, but for the reentrant kind, which is refused: it detaches, in silence,
    all that is not a tensor argument or a tensor result of a layer, and F and what follows from it must never be
    detached. It stands before a `PreTrainedModel`.
    """

    def _set_gradient_checkpointing(
        self,
        enable: bool = True,
        gradient_checkpointing_func: Callable[..., Any] = checkpoint,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if enable and _is_reentrant(gradient_checkpointing_func):
            raise SelattnError(REENTRANT)
        plain = functools.partial(gradient_checkpointing_func, use_reentrant=False)
        super()._set_gradient_checkpointing(enable, plain, *args, **kwargs)  # type: ignore[misc]


def check_recomputing(model: nn.Module) -> None:
    """Raise for a model with a part that is checkpointed in the reentrant way."""
    for module in model.modules():
        func = getattr(module, "_gradient_checkpointing_func", None)
        if getattr(module, "gradient_checkpointing", False) and _is_reentrant(func):
            raise SelattnError(REENTRANT)


def _is_reentrant(func: Any) -> bool:
    return bool(getattr(func, "keywords", {}).get("use_reentrant"))


def check_loading(options: dict[str, Any]) -> None:
    """Raise for arguments of `from_pretrained` that a selective model cannot be loaded with; safetensors are set."""
    if options.setdefault("use_safetensors", True) is not True:
        raise SelattnError("selattn reads weights from safetensors only: leave use_safetensors out")
    across = options.get("distributed_config") or {}
    # Sharding (FSDP2) gathers a layer's weights before it runs: it splits no layer.
    for given in (options, across if isinstance(across, dict) else vars(across)):
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


class SelectivePreTrainedModel(Recomputing, PreTrainedModel):
    """The base of both models."""

    config: SelectiveConfig
    config_class = SelectiveConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["SelectiveDecoderLayer"]  # noqa: RUF012 (transformers' own convention)
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012

    def __init__(self, config: SelectiveConfig, *, share_config: bool = False) -> None:
        """Take a copy of the config, so that two models made from one do not change each other's.

        `share_config` is for a model inside another, which has taken one already.
        """
        super().__init__(config if share_config else copy.deepcopy(config))
        self.config.check()  # again: a config can be changed after it was made

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; from safetensors only, since other formats can run code when read."""
        check_loading(kwargs)
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    def _init_weights(self, module: Any) -> None:
        """As in transformers; a new form, whose matrices come before it, starts where it forgets nothing."""
        super()._init_weights(module)
        if isinstance(module, SelectingForm):
            module.reset_parameters()

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """transformers' attention functions know no F: none of them can replace ours.

        "eager" and "sdpa" ask for nothing but what transformers does by default, and many pass them by habit, so they
        are accepted and change nothing. The others ask for a certain kernel, which would not be used.
        """
        if requested_attention not in (None, "eager", "sdpa"):
            raise SelattnError(
                f"attn_implementation={requested_attention!r} does not apply: "
                "a selattn model's attention is set by `attention` and `backend` in its config"
            )
        return "eager"
