"""Calling the compiled library, for attention, the eviction order and the decoding step."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from selattn.errors import SelattnError
from selattn.ops.eviction import COMPILED
from selattn.ops.rules import Rules, compute_dtype
from selattn.ops.selection import Selection
from selattn.utils import native
from selattn.utils.native import constant

_NAMES = {torch.float32: "FLOAT32", torch.float64: "FLOAT64", torch.bfloat16: "BFLOAT16"}
DTYPES = {dtype: constant(name) if native.library() else -1 for dtype, name in _NAMES.items()}
POLICIES = [constant(name) if native.library() else -1 for name in COMPILED]
BLOCK = constant("BLOCK") if native.library() else 1  # queries whose F begins with a stored value
LARGEST_HEAD = constant("MAX_SIZE") if native.library() else 0


def cannot_hold(query: Tensor, *others: Tensor | None) -> str | None:
    """Why the library cannot take such tensors; None if it can."""
    if query.device.type != "cpu":
        return f"it runs on the CPU, not on {query.device.type}"
    if query.dtype not in DTYPES:
        return f"it takes fp32, fp64 and bf16, not {query.dtype}"
    for x in (query, *others):
        if x is not None and x.shape[3] > LARGEST_HEAD:
            return f"its heads have at most {LARGEST_HEAD} features"
    return None


def rules_fields(rules: Rules, query: Tensor) -> dict[str, Any]:
    """The fields of csrc/rules.h."""
    strength = rules.strength
    if isinstance(strength, Tensor):
        strength = float(strength.to(compute_dtype(query.dtype)))
    return {
        "scale": rules.scale_of(query),
        "softcap": rules.softcap or 0.0,
        "window": rules.window or 0,
        "strength": strength,
        **_switches(rules.selection),
    }


@lru_cache(maxsize=256)
def _switches(selection: Selection | None) -> dict[str, bool]:
    """The selection's switches, and any where nothing selects. Not to be changed: it is cached."""
    return (selection or Selection()).switches


@lru_cache(maxsize=256)
def integers(values: tuple[int, ...]) -> Tensor:
    """As the library reads them; made once, not with every call."""
    return torch.tensor(values, dtype=torch.int64)


def dense_rows(x: Tensor) -> Tensor:
    """The tensor itself, if the features of a row lie side by side; else a copy."""
    return x if x.stride(-1) == 1 else x.contiguous()


def form_of_type(x: Tensor, query: Tensor) -> Tensor:
    """Queries or keys of a separate form, in a type that the library takes together with the query's."""
    exact = compute_dtype(query.dtype)
    return x if x.dtype == exact or (x.dtype == torch.bfloat16 and exact == torch.float32) else x.to(exact)


def form_fields(query: Tensor | None, key: Tensor | None) -> dict[str, Any]:
    """The fields of a form [B, S, n, size], [B, S, M, size] in the structs of the cache."""
    names = ("form_query", "form_key", "form_query_stride", "form_key_stride")
    if query is None or key is None:
        return dict.fromkeys(names) | {"form_size": 0, "form_dtype": 0}
    return dict(zip(names, (query, key, query, key), strict=True)) | {
        "form_size": query.shape[-1],
        "form_dtype": DTYPES[query.dtype],
    }


def call_library(function: str, *args: Any, who: str, smaller: str) -> None:
    """Call a function of the library; one line, which says what to make smaller, where memory runs out."""
    library = native.library()
    assert library is not None
    if getattr(library, function)(*args):
        raise SelattnError(f"{who} needs more memory than there is: use a smaller batch or {smaller}")
