"""Make a stock model selective in place, and standard again."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from selattn.errors import SelattnError
from selattn.models.stock.attention import NAME, add_form
from selattn.models.stock.classes import config_class, family_of_config, model_class
from selattn.models.stock.families import Family, family_of
from selattn.models.stock.form import SelectingForm
from selattn.models.stock.model import StockSelective
from selattn.models.stock.settings import NewForm, StockSettings
from selattn.ops import Selection

NEW = "new"


def make_selective(
    model: Any,
    *,
    selection: int | tuple[int, ...] | Selection | NewForm | str | None = 0,
    strength: float = 1.0,
    **settings: Any,
) -> Any:
    """The same model, made selective in place: F is subtracted from the logits of its heads, and its cache forgets.

    `forward` and `generate` then take `cache_budgets=` and `cache_policy=`, with every eviction policy.

    Args:
        model: a causal language model of transformers, of a family that is understood (`FAMILIES`).
        selection: the head that selects, or one for each of several masks; a `Selection`; "new" or a `NewForm` for a
            selecting form of its own, which starts at the stock loss and has to be trained; None if nothing selects and
            only the cache is wanted, with H2O, TOVA or a window.
        strength: multiplies S. A pretrained head was not trained to select: start near 0 and ramp it up.
        settings: other fields of `StockSettings`: memory_epsilon, memory_tau, cache_budgets, cache_policy, backend.
    """
    if _is_selective(model):
        raise SelattnError(f"{type(model).__name__} is selective already: use make_standard(model) first")
    family = family_of(model)
    if any(type(parameter).__name__ == "DTensor" for parameter in model.parameters()):
        raise SelattnError("tensor parallelism would give each rank a selecting head of its own: load the model whole")
    chosen = _settings(model.config, selection, strength, settings)
    config = copy.deepcopy(model.config)
    config.__class__ = config_class(family)
    config.selattn = chosen.to_dict()
    _replace_config(model, config)
    model.__class__ = model_class(family)
    equip(model)
    return model


def make_standard(model: Any) -> Any:
    """The same model as it was before `make_selective`: a selecting form of its own is dropped."""
    if not _is_selective(model):
        raise SelattnError(f"{type(model).__name__} was not made selective: there is nothing to take back")
    config: Any = copy.deepcopy(model.config)
    family = family_of_config(config)
    for module in attention_modules(model, family):
        if hasattr(module, "selecting_form"):
            module.selecting_hook.remove()
            del module.selecting_form, module.selecting_hook
    del config.selattn
    config.__class__ = family.load(family.config, "configuration")
    config.architectures = [family.model]
    model.__class__ = family.load(family.model)
    _replace_config(model, config)
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    return model


def equip(model: Any) -> None:
    """What a selective model has beside the stock one: our attention function, and a selecting form in each layer."""
    settings, config = model.settings, model.config
    family = family_of_config(config)
    found = attention_modules(model, family)
    if len(found) != config.num_hidden_layers:
        raise SelattnError(f"{type(model).__name__} has {len(found)} attention layers, not {config.num_hidden_layers}")
    for module in found:
        if settings.form is not None:
            like = next(module.parameters())
            masks, size = form_sizes(settings.form, config)
            form = SelectingForm(settings.form, config.hidden_size, masks, size, _context(settings.form, config))
            module.selecting_form = form.to(like.device, like.dtype)
            module.selecting_hook = module.register_forward_pre_hook(add_form, with_kwargs=True)
    model.set_attn_implementation(NAME)


def attention_modules(model: nn.Module, family: Family) -> list[Any]:
    """The self-attention of each layer."""
    kind = family.load(family.attention)
    return [module for module in model.modules() if isinstance(module, kind)]


def form_sizes(form: NewForm, config: Any) -> tuple[int, int]:
    """How many masks a form makes, and of which size."""
    heads = config.num_attention_heads
    masks = form.masks or getattr(config, "num_key_value_heads", None) or heads
    if heads % masks:
        raise SelattnError(f"{masks} masks cannot be shared out among {heads} heads: take a divisor")
    return masks, form.size or getattr(config, "head_dim", None) or config.hidden_size // heads


def _is_selective(model: Any) -> bool:
    return isinstance(model, StockSelective)


def _context(form: NewForm, config: Any) -> int:
    return form.context or int(config.max_position_embeddings)


def _settings(config: Any, selection: Any, strength: float, settings: dict[str, Any]) -> StockSettings:
    """Checked, and as the config has it."""
    form = None
    if isinstance(selection, NewForm) or selection == NEW:
        form = selection if isinstance(selection, NewForm) else NewForm()
        masks, _ = form_sizes(form, config)
        selection = Selection(tuple(range(masks)) if masks > 1 else 0)
    elif isinstance(selection, str):
        raise SelattnError(f'selection is a head, a Selection, a NewForm, "{NEW}" or None, not {selection!r}')
    elif selection is not None and not isinstance(selection, Selection):
        selection = Selection(selection)
    if selection is not None and form is None:
        heads = config.num_attention_heads
        if max(selection.heads) >= heads:
            raise SelattnError(f"head {max(selection.heads)} cannot select: the model has {heads} heads, from 0")
        if heads % len(selection.heads):
            raise SelattnError(f"{len(selection.heads)} masks cannot be shared out among {heads} heads: take a divisor")
    if isinstance(strength, bool) or not 0 <= strength <= 1:
        raise SelattnError(f"strength must be between 0 and 1, not {strength!r}")
    try:
        return StockSettings(selection, form, float(strength), **settings)
    except TypeError as error:
        raise SelattnError(f"make_selective: {error}") from None


def _replace_config(model: nn.Module, config: Any) -> None:
    """Two models made from one config share it, and so do the parts of a model: all parts of this one get the copy."""
    old: Any = model.config
    for module in model.modules():
        if getattr(module, "config", None) is old:
            module.config = config
