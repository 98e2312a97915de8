"""How a stock model's attention finds its layer of the cache.

Every attention of transformers calls `cache.update(key, value, layer)` and gives the result to its attention function,
which never sees the cache. So `update` gives back the new keys and values, wrapped: an attention function that knows
this cache unwraps them and gets the layer, to which it hands the queries, too.

    def attention(module, query, key, value, attention_mask, scaling, **kwargs):
        layer, key, value = handed_over(key, value)   # no layer: whole sequences, without a cache
        result = attend(layer, Tokens(query, key, value), rules)

Whoever else computes with them is told so: a plain attention function would see nothing of what the layer keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from selattn.errors import SelattnError

if TYPE_CHECKING:
    from selattn.cache.slots import SlotLayer

# What may be asked of keys and values on their way.
READABLE = {
    getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "is_cuda", "requires_grad")
} | {Tensor.size, Tensor.dim, Tensor.__len__, Tensor.__repr__}


class HandedOver(Tensor):
    """A key or value on its way from a layer of the cache to the attention function."""

    layer: SlotLayer
    given: Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Its shape can be asked for, and nothing can be computed with it."""
        if func in READABLE:
            return func(args[0].given, *args[1:])
        raise SelattnError(
            "this cache keeps F, and this attention function does not know it: use it with selattn's own models, or "
            "with a model that was made selective"
        )


def hand_over(layer: SlotLayer, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values by which `handed_over` finds the layer."""
    if torch.compiler.is_exporting():
        raise SelattnError("a model that was made selective is exported without a cache: pass use_cache=False")
    return _wrapped(layer, key), _wrapped(layer, value)


def handed_over(key: Tensor, value: Tensor) -> tuple[SlotLayer | None, Tensor, Tensor]:
    """The layer that these keys and values came from, None if they came from no cache; and what it was given."""
    if not isinstance(key, HandedOver) or not isinstance(value, HandedOver):
        return None, key, value
    return key.layer, key.given, value.given


def _wrapped(layer: SlotLayer, x: Tensor) -> Tensor:
    made = x.detach().as_subclass(HandedOver)
    made.layer, made.given = layer, x
    return made
