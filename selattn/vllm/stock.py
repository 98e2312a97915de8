"""Models of vLLM with our layer in the place of `Attention`: saved selective ones, and stock ones that only evict.

    SelectiveLlamaForCausalLM   what `make_selective` or `convert` has saved
    SelattnLlamaForCausalLM     an unchanged Llama, by --hf-overrides, with a policy that needs no F

The classes are made when they are asked for, so that no model of vLLM is imported before.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models.utils import extract_layer_index

from selattn.errors import SelattnError
from selattn.models.form import NewForm, SelectingForm
from selattn.models.stock.model import StockSettings
from selattn.vllm.backend import Stateful
from selattn.vllm.checks import backend_of, plans_of
from selattn.vllm.layer import SelectiveAttention
from selattn.vllm.plan import LayerPlan
from selattn.vllm.plugin import EVICTING, SAVED, STOCK

FORM = "selecting_form"


class StockModel(Stateful):
    """Stands before a model of vLLM."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "", **more: Any) -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, **more)  # type: ignore[call-arg]
        config = vllm_config.model_config.hf_config
        plans = plans_of(vllm_config)
        replaced = [_replace(module, plans, vllm_config) for module in list(_attending(self))]
        if len(replaced) != len(plans):
            raise SelattnError(f"{type(self).__name__} has {len(replaced)} layers of attention, not {len(plans)}")
        form = StockSettings.from_dict(config.selattn).form
        if form is not None:
            for module in replaced:
                _add_form(module, form, config, vllm_config)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Those of the selecting forms by their own names, the others as the stock model does."""
        forms = {name: x for name, x in self.named_parameters() if f".{FORM}." in name}  # type: ignore[attr-defined]
        loaded = set()

        def others() -> Iterable[tuple[str, Tensor]]:
            for name, x in weights:
                if f".{FORM}." not in name:
                    yield name, x
                    continue
                if name not in forms:
                    raise SelattnError(f"the model has no place for the weight {name}")
                forms[name].data.copy_(x)
                loaded.add(name)

        found: set[str] = super().load_weights(others())  # type: ignore[misc]
        if missing := sorted(forms.keys() - loaded):
            raise SelattnError(f"the model's weights lack {len(missing)} of its selecting forms, such as {missing[0]}")
        return found | loaded


def _attending(model: Any) -> Iterable[nn.Module]:
    """The modules that hold an `Attention`."""
    return (module for module in model.modules() if isinstance(getattr(module, "attn", None), Attention))


def _replace(module: Any, plans: list[LayerPlan], config: VllmConfig) -> Any:
    """Put our layer in the place of the module's `Attention`; the module."""
    old: Attention = module.attn
    impl: Any = old.impl
    plan = plans[extract_layer_index(old.layer_name)]
    given = (old.num_heads, old.num_kv_heads, old.head_size, old.head_size_v, old.sliding_window)
    if given != (plan.heads, plan.groups, plan.size, plan.size, plan.rules.window):
        raise SelattnError(f"{old.layer_name}: vLLM and transformers do not agree about this layer: {given}, {plan}")
    if old.attn_type != "decoder" or old.kv_sharing_target_layer_name is not None or old.has_sink:
        raise SelattnError(f"{old.layer_name} attends in a way that is not understood")
    rules = plan.rules._replace(scale=impl.scale, softcap=impl.logits_soft_cap or None)
    del config.compilation_config.static_forward_context[old.layer_name], module.attn
    backend = backend_of(config.model_config.hf_config)
    module.attn = SelectiveAttention(replace(plan, rules=rules), old.layer_name, config, backend)
    return module


class WithForm:
    """Stands before the attention module of a stock model whose selecting form reads what the module reads."""

    attn: Any
    selecting_form: SelectingForm

    def forward(self, positions: Tensor, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """As without a form."""
        query, key = (x[0].transpose(0, 1).flatten(1) for x in self.selecting_form(hidden_states[None]))
        self.attn.form = query, key
        found = super().forward(positions, hidden_states, *args, **kwargs)  # type: ignore[misc]
        self.attn.form = None
        return found


class FormAttention(nn.Module):
    """Hands the queries and keys of a form, which `WithForm` has left here, to the layer."""

    def __init__(self, layer: SelectiveAttention) -> None:
        super().__init__()
        self.layer = layer
        self.form: tuple[Tensor, Tensor] | None = None

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """As the layer's own."""
        assert self.form is not None
        return self.layer(query, key, value, *self.form)


def _add_form(module: Any, form: NewForm, config: Any, vllm_config: VllmConfig) -> None:
    """A selecting form beside the attention of a layer."""
    masks, size = module.attn.plan.form
    like = module.qkv_proj.weight
    context = form.context or config.max_position_embeddings
    module.selecting_form = SelectingForm(form, config.hidden_size, masks, size, context).to(like.device, like.dtype)
    module.attn = FormAttention(module.attn)
    kind = type(module)
    module.__class__ = type(f"Selective{kind.__name__}", (WithForm, kind), {"__module__": __name__})


def __getattr__(name: str) -> Any:
    """The class of an architecture."""
    for begin in (SAVED, EVICTING):
        stock = name.removeprefix(begin)
        if stock != name and stock in STOCK:
            base = getattr(importlib.import_module(f"vllm.model_executor.models.{STOCK[stock]}"), stock)
            made = type(name, (StockModel, base), {"__module__": __name__, "__doc__": f"{stock} with our layer."})
            globals()[name] = made
            return made
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
