"""Selecting forms beside the attention of a stock model: put in, and taken out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from selattn.errors import SelattnError
from selattn.models.form import NewForm, SelectingForm
from selattn.models.stock.attention import add_form


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
