"""Make a stock model selective in place and standard again; or let it evict for a while, as it is."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from selattn.cache import Budgets, Policy
from selattn.errors import SelattnError
from selattn.models.base import check_recomputing, check_whole
from selattn.models.form import NewForm, drop_forms, form_sizes
from selattn.models.stock.families import config_class, family_of, family_of_config, model_class
from selattn.models.stock.model import StockBase, StockSettings
from selattn.ops import Selection

NEW = "new"
_INSIDE = "_selattn_evicting"  # on a model inside `evicting`


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


@contextmanager
def evicting(model: Any, budgets: Budgets | int | Sequence[int], policy: str | Policy = "tova") -> Iterator[None]:
    """A context in which a stock model evicts: `forward` and `generate` keep at most K_l tokens in layer l.

    The model is not trained and its class stays; after the context it is as before. Inside, its caches are of
    selattn's kind: outside they are refused.

    Args:
        model: a causal language model or T5 of transformers, of a family that is understood (`FAMILIES`).
        budgets: K_l, one number for all layers or one for each.
        policy: which token is evicted when a layer is full: "h2o", "tova", "window+4", or a policy of your own that
            needs no F.
    """
    if _is_selective(model):
        raise SelattnError(
            f"{type(model).__name__} is selective already: give cache_budgets to generate() or forward()"
        )
    if _INSIDE in vars(model):
        raise SelattnError("this model evicts already: leave the inner evicting() out")
    if replaced := [name for name in ("forward", "generate") if name in vars(model)]:
        raise SelattnError(f"the model's {replaced[0]} was replaced, by hooks or a compiler: evict before that")
    if budgets is None:
        raise SelattnError("evicting() needs budgets: how many tokens each layer may keep")
    configs = [(module, vars(module)["config"]) for module in model.modules() if "config" in vars(module)]
    shadow = copy.copy(model)  # of the selective class, with the same modules and weights
    try:
        make_selective(shadow, selection=None)
        chosen = Budgets.of(budgets)
        shadow.limits(chosen, policy)  # refuses what does not fit the model
        shadow.own_eviction = lambda: (chosen, policy)
        for name in ("forward", "generate"):
            setattr(model, name, _of_shadow(model, shadow, name))
        setattr(model, _INSIDE, True)
        yield
    finally:
        for name in ("forward", "generate", _INSIDE):
            vars(model).pop(name, None)
        if _is_selective(shadow):
            shadow.unequip()
        for module, config in configs:
            module.config = config


def _of_shadow(model: Any, shadow: Any, name: str) -> Any:
    """A method of the shadow, for the model itself."""

    @functools.wraps(getattr(type(model), name))
    def call(*args: Any, **kwargs: Any) -> Any:
        shadow.training = model.training
        return getattr(shadow, name)(*args, **kwargs)

    return call


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
