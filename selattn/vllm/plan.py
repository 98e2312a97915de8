"""What each layer of a served model keeps of a request, and by which rules it attends; vLLM is not needed for this.

The state of a layer is one row of a `Pool`: positions, F, the policy's scores, keys, values and the keys of a selecting
form, side by side. Its size depends on the config alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from selattn.cache import Policy, make_policy
from selattn.cache.pool import Pool
from selattn.errors import SelattnError
from selattn.evaluation.subjects import check_budgets
from selattn.models.config import SelectiveConfig
from selattn.models.form import form_sizes
from selattn.models.stock.model import StockSettings, describe
from selattn.ops.request import Tokens
from selattn.ops.rules import Rules

ALIGNMENT = 64  # bytes: states begin on cache lines
TOLD = ("length", "seen")  # vLLM says with every step how long each text is: that is not part of a state
# Small tensors first: their alignment is the strictest.
ORDER = ("position", "f", "score", "keys", "values", "selection_keys")


@dataclass(frozen=True)
class LayerPlan:
    """One layer.

    Attributes:
        heads: H, query heads.
        groups: G, key-value heads.
        size: D, features of a head.
        rules: selection, window and pattern; a stock model adds its scale and its soft cap.
        budget: K_l, or the longest text if that is shorter.
        policy: which token is evicted.
        form: masks and features of a selecting form beside the heads; None if a head selects, or nothing does.
    """

    heads: int
    groups: int
    size: int
    rules: Rules
    budget: int
    policy: Policy
    form: tuple[int, int] | None = None

    def template(self, dtype: torch.dtype) -> Pool:
        """A pool of one row without memory."""
        query = torch.empty(1, self.heads, 1, self.size, dtype=dtype, device="meta")
        key = query[:, : self.groups]
        form = None
        if self.form is not None:
            form = torch.empty(1, self.form[0], 1, self.form[1], dtype=dtype, device="meta")
        tokens = Tokens(query, key, key, None, form, form)
        return Pool.empty(tokens, self.rules, self.policy.per_head, self.policy.needs_weights, 1, self.budget)

    def nbytes(self, dtype: torch.dtype) -> int:
        """Bytes of a request's state in this layer."""
        sizes = (x.numel() * x.element_size() for x in _stored(self.template(dtype)).values())
        return math.ceil(sum(sizes) / ALIGNMENT) * ALIGNMENT

    def whole_nbytes(self, tokens: int, dtype: torch.dtype) -> int:
        """Bytes of the keys and values of so many tokens, in a cache that keeps them all."""
        return 2 * tokens * self.groups * self.size * dtype.itemsize

    def pool(self, pages: Tensor, dtype: torch.dtype) -> Pool:
        """The states in `pages` [R, bytes] int8, whose rows may lie apart; nothing is copied."""
        template, begin = self.template(dtype), 0
        views: dict[str, Any] = {}
        for name, x in _stored(template).items():
            end = begin + x.numel() * x.element_size()
            views[name] = pages[:, begin:end].view(x.dtype).view(-1, *x.shape[1:])
            begin = end
        rows, device = pages.shape[0], pages.device
        told: dict[str, Any] = {
            "length": torch.zeros(rows, dtype=torch.int64, device=device),
            "seen": torch.zeros(rows, dtype=torch.int64),
        }
        if not template.scored:
            told["score"] = torch.zeros(rows, *template.score.shape[1:], device=device)
        if not template.f.numel():
            told["f"] = torch.zeros(rows, *template.f.shape[1:], device=device)
        return replace(template, **views, **told)


def _stored(template: Pool) -> dict[str, Tensor]:
    """The tensors that lie in a state, in their order."""
    tensors = template.tensors()
    return {name: tensors[name] for name in ORDER if name in tensors and tensors[name].numel()}


def layer_plans(config: Any, longest: int) -> list[LayerPlan]:
    """Every layer of a model; one line if the config asks for what cannot be served.

    Args:
        config: of our decoder, of a selective stock model, or of a stock model with `selattn` set beside it.
        longest: tokens of the longest text.
    """
    settings: Any = config
    if isinstance(config, SelectiveConfig):
        config.check()  # again: it may have been overridden
        described = config.description
        rules = Rules(config.selection, config.selection_strength)
    else:
        settings = StockSettings.from_dict(getattr(config, "selattn", None) or {})
        described = describe(config)
        rules = Rules(settings.selection, settings.strength)
    policy = make_policy(settings.cache_policy)
    if settings.budgets is None or not policy.evicts:
        raise SelattnError(
            "no budgets are in force, so a request would cost as much as in any cache: give cache_budgets "
            "(selattn serve --budgets), or serve the standard model with vLLM itself, whose cache is the right one"
        )
    if policy.leaves_early:
        raise SelattnError(f"the policy {policy.name!r} keeps a varying number of tokens, and is not served")
    check_budgets(settings.budgets, described, settings.cache_policy)
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    plans = []
    for kind, budget in zip(described.kinds, settings.budgets.for_layers(described.layers), strict=True):
        selection = rules.selection if kind.selective else None
        layer = rules._replace(selection=selection, window=kind.window, pattern=kind.pattern)
        form = _form(config) if selection is not None else None
        plans.append(LayerPlan(heads, groups, size, layer, min(budget, longest), policy, form))
    return plans


def _form(config: Any) -> tuple[int, int] | None:
    """Masks and features of the selecting form of a model's layers that select."""
    if not isinstance(config, SelectiveConfig):
        form = StockSettings.from_dict(config.selattn).form
        return None if form is None else form_sizes(form, config)
    if config.selection_source == "head":
        return None
    return len(config.selection.heads), config.head_dim
