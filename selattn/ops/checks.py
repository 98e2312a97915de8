"""Checks of a call's arguments: each fails with one line, before any work is done."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from selattn.errors import SelattnError, unknown
from selattn.ops.request import AuxRequest, Request
from selattn.ops.rules import Fixed, Rules, Strided
from selattn.ops.selection import Selection
from selattn.ops.sequences import Sequences

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

# What belongs where: types, and their name. What may be None says so when it is checked.
_TENSOR = ((Tensor,), "a torch tensor")
_NUMBER = ((int, float, torch.SymInt, torch.SymFloat), "a number")
_FLAG = ((bool,), "True or False")
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("query", "key", "value", "attn_mask", "selection_query", "selection_key"), _TENSOR),
    **dict.fromkeys(("visible_until", "initial_f"), _TENSOR),
    **dict.fromkeys(("input_ids", "inputs_embeds", "attention_mask", "position_ids", "labels"), _TENSOR),  # of models
    **dict.fromkeys(("cu_seq_lens_q", "seq_idx"), _TENSOR),
    **dict.fromkeys(("dropout_p", "scale", "softcap", "tau", "tolerance"), _NUMBER),
    "strength": ((*_NUMBER[0], Tensor), "a number or a 0-d tensor"),
    "window": ((int, torch.SymInt), "a whole number of keys, at least 1 (the query's own)"),
    **dict.fromkeys(("is_causal", "enable_gqa", *AuxRequest._fields), _FLAG),
    "selection": ((Selection,), "a Selection"),
    "sequences": ((Sequences,), "Sequences"),
    "pattern": ((Strided, Fixed), "a Strided or a Fixed"),
    "return_aux": ((AuxRequest,), "an AuxRequest, such as AuxRequest(memory=True)"),
    "kernel_options": ((dict,), "a dictionary, such as {'tolerance': 0.0}"),
}


def error(message: str) -> SelattnError:
    """The error to raise."""
    return SelattnError(message)


def kinds(**given: Any) -> None:
    """Each argument, by its name, is the kind of thing that belongs there."""
    for name, value in given.items():
        types, said = _KINDS[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise error(f"{name} must be {said}, not {_told(value)}")


def optional(**given: Any) -> None:
    """The same, for what may be None."""
    for name, value in given.items():
        if value is not None:
            kinds(**{name: value})


def places(query: Tensor, **others: Tensor | None) -> None:
    """All tensors lie on one device."""
    for name, x in others.items():
        if x is not None and x.device != query.device:
            hint = "sequences.to(device)" if name == "sequences" else ".to(device)"
            raise error(f"query is on {query.device} but {name} is on {x.device}: move it with {hint}")


def _told(value: Any) -> str:
    """The kind of an argument, for messages."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name} (torch.from_numpy makes a tensor of it)" if name == "numpy.ndarray" else name


def tensors(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    """Ranks, sizes, dtypes and devices of query, key and value."""
    dtype, device, shapes = query.dtype, query.device, []
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.is_nested or x.layout != torch.strided:
            raise error(f"{name} must be a dense tensor, not a nested or sparse one: pad its rows, or pack them")
        shape = x.shape
        if len(shape) != 4:
            raise error(f"{name} must be [batch, heads, length, head size], not {list(shape)}")
        if x.dtype != dtype or x.device != device:
            raise error(f"query is {dtype} on {device} but {name} is {x.dtype} on {x.device}: they must be the same")
        shapes.append(shape)
        if shape[0] != shapes[0][0]:
            raise error(f"query has batch size {shapes[0][0]} but {name} has {shape[0]}")
        if shape[1] == 0 or shape[2] == 0 or shape[3] == 0:  # but a batch of 0 is a batch
            raise error(f"{name} {list(shape)} is empty: attention needs at least one head, token and feature")
    if dtype not in DTYPES:
        raise error(f"attention takes fp32, bf16, fp16 or fp64, not {dtype}")
    (_, heads, rows, size), (_, groups, keys, key_size), of_value = shapes
    if groups != of_value[1] or keys != of_value[2]:
        raise error(
            f"key {list(key.shape)} and value {list(value.shape)} must agree in heads and length (dimensions 1 and 2)"
        )
    if size != key_size:
        raise error(f"query has head size {size} but key has {key_size}")
    if heads % groups:
        raise error(f"{heads} query heads cannot be shared out among {groups} key-value heads: not a multiple")
    if heads != groups and not enable_gqa:
        raise error(f"query has {heads} heads but key and value have {groups}: pass enable_gqa=True if that is meant")
    if rows > keys:
        raise error(f"query has {rows} rows but there are only {keys} keys: the queries must be the last of the keys")


def numbers(dropout_p: float, scale: float | None, softcap: float | None, window: int | None, tau: float = 1.0) -> None:
    """Refuse scalar settings that are out of range."""
    if not 0.0 <= dropout_p < 1.0:
        raise error(f"dropout_p must be at least 0 and below 1, not {dropout_p}")
    if scale is not None and not math.isfinite(scale):
        raise error(f"scale must be a finite number, not {scale}")
    for name, value in (("softcap", softcap), ("tau", tau)):
        if value is not None and not value > 0:
            raise error(f"{name} must be above 0, not {value}")
    if window is not None and window < 1:
        raise error(f"window must be {_KINDS['window'][1]}, not {window}")


def kernel_options(given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Options that there are, each of its kind."""
    kinds(kernel_options=given)
    for name, value in given.items():
        if name not in known:
            raise error(unknown("kernel option", str(name), known))
        kinds(**{name: value})
    if not 0.0 <= given.get("tolerance", 0.0) < 1.0:
        raise error(f"tolerance must be at least 0 and below 1, not {given['tolerance']}")


def aux_request(given: AuxRequest, rules: Rules) -> None:
    """Flags, and of what there is: without selection there is no F."""
    kinds(return_aux=given)
    kinds(**given._asdict())
    if given != given.of(rules):
        raise error("standard attention has no F, and so no memory and no final_f: ask for weights or living only")


def attn_mask(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The mask with four dimensions; bool or floating point, and broadcastable to [B, H, N, M]."""
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise error(
            f"attn_mask must be bool (true = may attend) or floating point (added to the logits), not {mask.dtype}"
        )
    want = [*query.shape[:3], key.shape[2]]
    if mask.ndim > 4 or any(m not in (1, w) for m, w in zip(reversed(mask.shape), reversed(want), strict=False)):
        raise error(f"attn_mask {list(mask.shape)} cannot be broadcast to [batch, heads, queries, keys] = {want}")
    return mask[(None,) * (4 - mask.ndim)]


def visible_until(until: Tensor, key: Tensor) -> None:
    """Integers, one for each key of each row, or of each key-value head."""
    batch, groups, length = key.shape[:3]
    if until.is_floating_point() or until.is_complex() or until.dtype == torch.bool:
        raise error(f"visible_until must hold integer rows, not {until.dtype}")
    # Compared one by one: looked up in a set, a length that a compiled graph leaves open would become a constant.
    fits = until.ndim in (2, 3) and until.shape[0] == batch and until.shape[-1] == length
    if not fits or (until.ndim == 3 and until.shape[1] != 1 and until.shape[1] != groups):
        raise error(
            f"visible_until must be {[batch, length]} or, each head on its own, {[batch, groups, length]}, "
            f"not {list(until.shape)}"
        )


def sequences(given: Sequences, key: Tensor) -> None:
    """Sequences describe the keys."""
    start = given.start
    if start.shape[1] != key.shape[2] or (start.shape[0] != key.shape[0] and start.shape[0] != 1):
        raise error(
            f"sequences are for {list(start.shape)} [batch, keys], but the keys are {[key.shape[0], key.shape[2]]}"
        )


def selection(
    query: Tensor, key: Tensor, chosen: Selection, selection_query: Tensor | None, selection_key: Tensor | None
) -> None:
    """The selecting heads exist, or the separate form is whole."""
    heads, selecting = query.shape[1], chosen.heads
    masks = len(selecting)
    if (selection_query is None) != (selection_key is None):
        raise error("a separate bilinear form needs both selection_query and selection_key")
    if selection_query is not None and selection_key is not None:
        if chosen.head != 0:
            raise error("give either Selection(head=...) or selection_query and selection_key, not both")
        q, k = selection_query, selection_key
        if q.dtype not in DTYPES or q.dtype != k.dtype:
            raise error(
                f"selection_query is {q.dtype} and selection_key is {k.dtype}: they must be of one floating point dtype"
            )
        if q.ndim != 4 or k.ndim != 4 or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
            raise error(
                f"selection_query {list(q.shape)} and selection_key {list(k.shape)} do not fit: "
                "they must be [batch, masks, queries, size] and [batch, masks, keys, size]"
            )
        if q.shape[0] != query.shape[0] or q.shape[2] != query.shape[2] or k.shape[2] != key.shape[2]:
            raise error(
                f"selection_query {list(q.shape)} and selection_key {list(k.shape)} do not fit "
                f"query {list(query.shape)} and key {list(key.shape)} in batch or length"
            )
        masks = q.shape[1]
    elif max(selecting) >= heads:
        raise error(f"the selecting head {max(selecting)} does not exist: there are {heads} query heads, from 0")
    if masks == 0 or heads % masks:
        raise error(f"{heads} heads cannot be shared out among {masks} selection masks: not a multiple")


def strength(value: float | Tensor) -> None:
    """In [0, 1]; a schedule, not a parameter."""
    kinds(strength=value)
    if isinstance(value, Tensor):
        if value.ndim or value.requires_grad or not value.is_floating_point():
            raise error("strength must be a number or a 0-d floating point tensor that needs no gradient (detach it)")
    elif not 0.0 <= value <= 1.0:
        raise error(f"strength must be in [0, 1], not {value}")


def initial_f(given: Tensor | None, request: Request) -> bool:
    """Whether there is an F to begin with; it is required as soon as there are earlier keys."""
    batch, earlier = request.query.shape[0], request.offset
    if given is None and not earlier:
        return False
    shape = [batch, request.masks, earlier]
    if given is None:
        raise error(
            f"{request.query.shape[2]} queries continue after {earlier} earlier keys: pass initial_f=, the final_f of "
            f"the call before (or zeros {shape} if nothing was selected)"
        )
    if list(given.shape) != shape or not given.is_floating_point():
        raise error(
            f"initial_f must be floating point {shape} [batch, masks, earlier keys], "
            f"not {given.dtype} {list(given.shape)}"
        )
    return earlier > 0
