"""Make a stock model selective in place, and standard again."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from selattn.errors import SelattnError
from selattn.models.base import check_recomputing
from selattn.models.form import NewForm
from selattn.models.splitting import check_whole
from selattn.models.stock.classes import config_class, family_of_config, model_class
from selattn.models.stock.families import family_of
from selattn.models.stock.form import drop_forms, form_sizes
from selattn.models.stock.model import StockBase
from selattn.models.stock.settings import StockSettings
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
        model: a causal language model of transformers, of a family that is understood (`FAMILIES`), or a
            `T5ForConditionalGeneration`, whose decoder then selects.
        selection: the head that selects, or one for each of several masks; a `Selection`; "new" or a `NewForm` for a
            selecting form of its own, which starts at the stock loss and has to be trained; None if nothing selects and
            only the cache is wanted, with H2O, TOVA or a window.
        strength: multiplies S. A pretrained head was not trained to select: start near 0 and ramp it up.
        settings: other fields of `StockSettings`: memory_epsilon, memory_tau, cache_budgets, cache_policy, backend.
    """
    if _is_selective(model):
        raise SelattnError(f"{type(model).__name__} is selective already: use make_standard(model) first")
    if isinstance(model, nn.Module):
        check_whole(model)
        check_recomputing(model)
    family = family_of(model)
    chosen = _settings(model.config, selection, strength, settings)
    config = copy.deepcopy(model.config)
    config.__class__ = config_class(family)
    config.selattn = chosen.to_dict()
    _replace_config(model, config)
    model.__class__ = model_class(family)
    model.equip()
    return model


def make_standard(model: Any) -> Any:
    """The same model as it was before `make_selective`: a selecting form of its own is dropped."""
    if not _is_selective(model):
        raise SelattnError(f"{type(model).__name__} was not made selective: there is nothing to take back")
    config: Any = copy.deepcopy(model.config)
    family = family_of_config(config)
    drop_forms(model)
    model.unequip()
    del config.selattn
    config.__class__ = family.load(family.config, "configuration")
    config.architectures = [family.model]
    model.__class__ = family.load(family.model)
    _replace_config(model, config)
    if not family.seq2seq:
        model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    return model


def _is_selective(model: Any) -> bool:
    return isinstance(model, StockBase)


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
    try:
        return StockSettings(selection, form, float(strength) if type(strength) is int else strength, **settings)
    except TypeError as error:
        raise SelattnError(f"make_selective: {error}") from None


def _replace_config(model: nn.Module, config: Any) -> None:
    """Two models made from one config share it, and so do the parts of a model: all parts of this one get the copy."""
    old: Any = model.config
    for module in model.modules():
        if getattr(module, "config", None) is old:
            module.config = config
