"""A separate selecting form, added to a model that was trained without selection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from selattn.errors import SelattnError


@dataclass(frozen=True)
class NewForm:
    """A selecting form of its own: S = relu(W_q x . W_k x' / sqrt(size) + b), with no head in it.

    At first W_k = 0 and b is small, so that the model starts at its stock loss; W_q is random, so that it does move
    (with all at 0 it never would: the derivative of relu at 0 is 0). A bias b adds b times the distance to F, hence the
    2.5 / N.

    Args:
        masks: how many; None is one for each key-value head.
        size: features of a query and a key, the bias included; None is the model's head size.
        bias: b at first; None is 2.5 / `context`.
        deviation: of W_q at first.
        context: N, for which b is meant; None is the model's longest sequence.
    """

    masks: int | None = None
    size: int | None = None
    bias: float | None = None
    deviation: float = 0.125
    context: int | None = None

    def __post_init__(self) -> None:
        for name in ("masks", "size", "context"):
            value = getattr(self, name)
            least = 2 if name == "size" else 1
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise SelattnError(f"NewForm.{name} must be a whole number of at least {least}, not {value!r}")
        for name in ("bias", "deviation"):
            value = getattr(self, name)
            if value is None and name == "bias":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise SelattnError(f"NewForm.{name} must be a finite number, not {value!r}")


class SelectingForm(nn.Module):
    """Queries and keys [B, S, N, size] whose products over sqrt(size) are W_q x . W_k x' / sqrt(size) + b.

    The bias is one more feature: sqrt(size) in the query, b in the key. So operator, kernels and cache know no bias.
    """

    def __init__(self, form: NewForm, hidden: int, masks: int, size: int, context: int) -> None:
        super().__init__()
        self.form, self.masks, self.size, self.context = form, masks, size, context
        self.q_proj = nn.Linear(hidden, masks * (size - 1), bias=False)
        self.k_proj = nn.Linear(hidden, masks * (size - 1), bias=False)
        self.bias = nn.Parameter(torch.empty(masks))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """W_k = 0, W_q ~ N(0, deviation), b = 2.5 / N; see `NewForm`."""
        nn.init.normal_(self.q_proj.weight, std=self.form.deviation)
        nn.init.zeros_(self.k_proj.weight)
        nn.init.constant_(self.bias, 2.5 / self.context if self.form.bias is None else self.form.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, N, hidden] to queries and keys."""
        query, key = (self._by_mask(project(x)) for project in (self.q_proj, self.k_proj))
        ones = torch.full_like(query[..., :1], self.size**0.5)
        bias = self.bias.to(key.dtype)[:, None, None].expand_as(key[..., :1])
        return torch.cat([query, ones], -1), torch.cat([key, bias], -1)

    def _by_mask(self, x: Tensor) -> Tensor:
        """[B, N, S * size] to [B, S, N, size]."""
        return x.unflatten(-1, (self.masks, -1)).transpose(1, 2)


# -- in stock models --------------------------------------------------------------------------------------------------

FORM = "selattn_form"  # the keyword argument of the attention function with the form's queries and keys


def form_sizes(form: NewForm, config: Any) -> tuple[int, int]:
    """The number of masks of a form in a model, and their size."""
    heads = config.num_attention_heads
    masks = form.masks or getattr(config, "num_key_value_heads", None) or heads
    if heads % masks:
        raise SelattnError(f"{masks} masks cannot be shared out among {heads} heads: take a divisor")
    return masks, form.size or getattr(config, "head_dim", None) or config.hidden_size // heads


def add_forms(attention: Sequence[Any], form: NewForm | None, config: Any) -> None:
    """Give the attention of each layer a form, which reads what the attention reads."""
    if form is None:
        return
    masks, size = form_sizes(form, config)
    context = form.context or int(getattr(config, "max_position_embeddings", 512))
    for module in attention:
        like = next(module.parameters())
        module.selecting_form = SelectingForm(form, config.hidden_size, masks, size, context).to(
            like.device, like.dtype
        )
        module.selecting_hook = module.register_forward_pre_hook(_add_form, with_kwargs=True)


def drop_forms(model: nn.Module) -> None:
    """Undo `add_forms`."""
    for module in model.modules():
        attention: Any = module
        if isinstance(getattr(attention, "selecting_form", None), SelectingForm):
            attention.selecting_hook.remove()
            del attention.selecting_form, attention.selecting_hook


def _add_form(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A hook before an attention module: its selecting form reads what the module reads."""
    states = args[0] if args else kwargs["hidden_states"]
    form: Any = module.selecting_form
    return args, {**kwargs, FORM: form(states)}
