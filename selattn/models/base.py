"""What transformers must know to load, save, place and checkpoint the models, and what they refuse."""

from __future__ import annotations

import copy
from typing import Any

from transformers import PreTrainedModel

from selattn.errors import SelattnError
from selattn.models.config import SelectiveConfig


class SelectivePreTrainedModel(PreTrainedModel):
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
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, from safetensors only: other formats can run code when they are read."""
        if kwargs.setdefault("use_safetensors", True) is not True:
            raise SelattnError("selattn reads weights from safetensors only: leave use_safetensors out")
        across = kwargs.get("distributed_config") or {}
        across = across if isinstance(across, dict) else vars(across)
        if any(given.get(name) for given in (kwargs, across) for name in ("tp_plan", "tp_size")):
            raise SelattnError("tensor parallelism would give each rank a selecting head of its own: leave it out")
        return super().from_pretrained(*args, **kwargs)

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """transformers' attention functions know no F: none of them can be put in the place of ours."""
        if requested_attention not in (None, "eager"):
            raise SelattnError(
                f"attn_implementation={requested_attention!r} does not apply: "
                "a selattn model's attention is set by `attention` and `backend` in its config"
            )
        return "eager"

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None, *args: Any, **kwargs: Any
    ) -> None:
        """As in transformers, but reentrant checkpointing is refused: it detaches, in silence, all that is not a tensor
        argument or a tensor result of a layer, and F and what follows from it must never be detached.
        """
        if (gradient_checkpointing_kwargs or {}).get("use_reentrant"):
            raise SelattnError(
                "reentrant gradient checkpointing can lose gradients in silence: "
                "pass gradient_checkpointing_kwargs={'use_reentrant': False}"
            )
        checked = {**(gradient_checkpointing_kwargs or {}), "use_reentrant": False}
        super().gradient_checkpointing_enable(checked, *args, **kwargs)
