"""What transformers must know to load, save, place and checkpoint the models, and what they refuse."""

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
from selattn.models.splitting import check_loading
from selattn.models.zoo import from_zoo

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
        """As in transformers, also of `zoo:NAME`; from safetensors only, since other formats can run code when read."""
        check_loading(kwargs)
        return super().from_pretrained(from_zoo(pretrained_model_name_or_path), *args, **kwargs)

    def _init_weights(self, module: Any) -> None:
        """As in transformers; a new form, whose matrices come before it, begins where it forgets nothing."""
        super()._init_weights(module)
        if isinstance(module, SelectingForm):
            module.reset_parameters()

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """transformers' attention functions know no F: none of them can be put in the place of ours.

        "eager" and "sdpa" ask for nothing but what transformers does by default, and many pass them by habit, so they
        are accepted and change nothing. The others ask for a certain kernel, which would not be used.
        """
        if requested_attention not in (None, "eager", "sdpa"):
            raise SelattnError(
                f"attn_implementation={requested_attention!r} does not apply: "
                "a selattn model's attention is set by `attention` and `backend` in its config"
            )
        return "eager"
