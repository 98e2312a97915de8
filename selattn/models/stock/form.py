"""A selecting form of its own, beside the attention of a stock model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from selattn.errors import SelattnError
from selattn.models.stock.attention import add_form
from selattn.models.stock.settings import NewForm


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


def form_sizes(form: NewForm, config: Any) -> tuple[int, int]:
    """How many masks a form makes in a model, and of which size."""
    heads = config.num_attention_heads
    masks = form.masks or getattr(config, "num_key_value_heads", None) or heads
    if heads % masks:
        raise SelattnError(f"{masks} masks cannot be shared out among {heads} heads: take a divisor")
    return masks, form.size or getattr(config, "head_dim", None) or config.hidden_size // heads


def add_forms(attention: Sequence[Any], form: NewForm | None, config: Any) -> None:
    """A form for the attention of each layer, which reads what that reads; none if there is no form."""
    if form is None:
        return
    masks, size = form_sizes(form, config)
    context = form.context or int(getattr(config, "max_position_embeddings", 512))
    for module in attention:
        like = next(module.parameters())
        module.selecting_form = SelectingForm(form, config.hidden_size, masks, size, context).to(
            like.device, like.dtype
        )
        module.selecting_hook = module.register_forward_pre_hook(add_form, with_kwargs=True)


def drop_forms(model: nn.Module) -> None:
    """Take back what `add_forms` added."""
    for module in model.modules():
        found: Any = module
        if isinstance(getattr(found, "selecting_form", None), SelectingForm):
            found.selecting_hook.remove()
            del found.selecting_form, found.selecting_hook
