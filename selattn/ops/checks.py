"""What a caller can get wrong, each found before any work is done and told in one line."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from selattn.errors import SelattnError
from selattn.ops.request import Request
from selattn.ops.selection import Selection
from selattn.ops.sequences import Sequences

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def error(message: str) -> SelattnError:
    """The error to raise."""
    return SelattnError(message)


def tensors(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    """Ranks, sizes, dtypes and devices of query, key and value."""
    named = {"query": query, "key": key, "value": value}
    for name, x in named.items():
        if x.ndim != 4:
            raise error(f"{name} must be [batch, heads, length, head size], not {list(x.shape)}")
        if x.dtype != query.dtype or x.device != query.device:
            raise error(
                f"query is {query.dtype} on {query.device} but {name} is {x.dtype} on {x.device}: they must be the same"
            )
        if x.shape[0] != query.shape[0]:
            raise error(f"query has batch size {query.shape[0]} but {name} has {x.shape[0]}")
        if x.numel() == 0:
            raise error(f"{name} {list(x.shape)} is empty: attention needs at least one row, head, token and feature")
    if query.dtype not in DTYPES:
        raise error(f"attention takes fp32, bf16, fp16 or fp64, not {query.dtype}")
    if key.shape[1:3] != value.shape[1:3]:
        raise error(
            f"key {list(key.shape)} and value {list(value.shape)} must agree in heads and length (dimensions 1 and 2)"
        )
    if query.shape[3] != key.shape[3]:
        raise error(f"query has head size {query.shape[3]} but key has {key.shape[3]}")
    heads, groups = query.shape[1], key.shape[1]
    if heads % groups:
        raise error(f"{heads} query heads cannot be shared out among {groups} key-value heads: not a multiple")
    if heads != groups and not enable_gqa:
        raise error(f"query has {heads} heads but key and value have {groups}: pass enable_gqa=True if that is meant")
    if query.shape[2] > key.shape[2]:
        raise error(
            f"query has {query.shape[2]} rows but there are only {key.shape[2]} keys: "
            "the queries must be the last of the keys"
        )


def numbers(dropout_p: float, scale: float | None, softcap: float | None, window: int | None) -> None:
    """The scalar settings."""
    if not 0.0 <= dropout_p < 1.0:
        raise error(f"dropout_p must be at least 0 and below 1, not {dropout_p}")
    if scale is not None and not math.isfinite(scale):
        raise error(f"scale must be a finite number, not {scale}")
    if softcap is not None:
        positive("softcap", softcap)
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise error(f"window must be a whole number of keys, at least 1 (the query's own), not {window}")


def positive(name: str, value: float) -> None:
    """A number above 0."""
    if not value > 0:
        raise error(f"{name} must be above 0, not {value}")


def tolerance(value: float) -> None:
    """A share of attention."""
    if not 0.0 <= value < 1.0:
        raise error(f"tolerance must be at least 0 and below 1, not {value}")


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
    if until.is_floating_point() or until.dtype == torch.bool:
        raise error(f"visible_until must hold integer rows, not {until.dtype}")
    if tuple(until.shape) not in {(batch, length), (batch, groups, length)}:
        raise error(
            f"visible_until must be {[batch, length]} or, each head on its own, {[batch, groups, length]}, "
            f"not {list(until.shape)}"
        )


def sequences(given: Sequences, key: Tensor) -> None:
    """Sequences describe the keys."""
    if tuple(given.start.shape) not in {(key.shape[0], key.shape[2]), (1, key.shape[2])}:
        raise error(
            f"sequences are for {list(given.start.shape)} [batch, keys], "
            f"but the keys are {[key.shape[0], key.shape[2]]}"
        )


def selection(
    query: Tensor, key: Tensor, chosen: Selection, selection_query: Tensor | None, selection_key: Tensor | None
) -> None:
    """The selecting heads exist, or the separate form is whole."""
    heads = query.shape[1]
    masks = len(chosen.heads)
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
    elif max(chosen.heads) >= heads:
        raise error(f"the selecting head {max(chosen.heads)} does not exist: there are {heads} query heads, from 0")
    if masks == 0 or heads % masks:
        raise error(f"{heads} heads cannot be shared out among {masks} selection masks: not a multiple")


def strength(value: float | Tensor) -> None:
    """In [0, 1]; a schedule, not a parameter."""
    if isinstance(value, Tensor):
        if value.ndim or value.requires_grad:
            raise error("strength must be a number or a 0-d tensor that needs no gradient (detach it)")
    elif not 0.0 <= value <= 1.0:
        raise error(f"strength must be in [0, 1], not {value}")


def state(given: Tensor | None, request: Request) -> bool:
    """Whether there is a state to continue from; it is required as soon as there are earlier keys."""
    batch, earlier = request.query.shape[0], request.offset
    if given is None:
        if earlier:
            raise error(
                f"{request.query.shape[2]} queries continue after {earlier} earlier keys: pass state=, the "
                "Attention.state of the call before "
                f"(or zeros [{batch}, {request.masks}, {earlier}] if nothing was selected)"
            )
        return False
    if tuple(given.shape) != (batch, request.masks, earlier) or not given.is_floating_point():
        raise error(
            f"state must be floating point {[batch, request.masks, earlier]} [batch, masks, earlier keys], "
            f"not {given.dtype} {list(given.shape)}"
        )
    return earlier > 0
