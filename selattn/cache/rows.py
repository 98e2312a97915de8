"""The rows of a layer: each can be emptied, copied, replaced and joined to others while the rest goes on.

Nothing of an old occupant stays behind: keys, values, positions, F and scores are overwritten.
"""

from __future__ import annotations

from torch import Tensor, arange, cat

from selattn.cache.slots import SLOTTED, SlotLayer, resized
from selattn.errors import SelattnError


def clear(layer: SlotLayer, rows: Tensor) -> None:
    """Empty some rows, which begin again with their next token."""
    for name, x in _storage(layer).items():
        x[rows.to(x.device)] = -1 if name == "position" else 0
    if layer.is_initialized:
        layer.shrink()


def take(layer: SlotLayer, rows: Tensor, other: SlotLayer) -> None:
    """An empty layer gets copies of some rows of another one."""
    found = _storage(other)
    if not found:
        return
    layer.dtype, layer.device, layer.is_initialized = other.dtype, other.device, True
    layer.heads, layer.stands_alone = other.heads, other.stands_alone
    for name, x in found.items():
        setattr(layer, name, x[rows.to(x.device)])
    layer.shrink()


def insert(layer: SlotLayer, rows: Tensor, other: SlotLayer) -> None:
    """Row rows[i] becomes a copy of row i of another layer."""
    found = _storage(other)
    clear(layer, rows)
    if not found:
        return
    _check(layer, other)
    if other.slots > layer.slots:
        layer.resize(other.slots)
    for name, x in _storage(layer).items():
        new = found[name]
        x[rows.to(x.device)] = _fitting(layer, name, new)
    layer.filled = max(layer.filled, other.filled)


def append(layer: SlotLayer, other: SlotLayer) -> None:
    """Copies of the rows of another layer, after the layer's own."""
    found = _storage(other)
    if not found:
        return
    if not _storage(layer):
        take(layer, arange(len(other.seen)), other)
        return
    _check(layer, other)
    if other.slots > layer.slots:
        layer.resize(other.slots)
    for name, x in _storage(layer).items():
        new = found[name]
        setattr(layer, name, cat([x, _fitting(layer, name, new)]))
    layer.filled = max(layer.filled, other.filled)


def _storage(layer: SlotLayer) -> dict[str, Tensor]:
    """The tensors of a layer, each with the rows in front; none if it is empty."""
    if layer.entries is not None:
        raise SelattnError("a draft is open, and its rows cannot be changed: crop it or roll it back first")
    return layer.tensors()


def _fitting(layer: SlotLayer, name: str, x: Tensor) -> Tensor:
    """A tensor of another layer with as many slots as this one has."""
    slotted = name in SLOTTED and (name != "score" or layer.policy.needs_weights)
    return resized(name, x, layer.slots) if slotted else x


def _check(layer: SlotLayer, other: SlotLayer) -> None:
    """Both hold tokens of the same kind."""
    mine, theirs = layer.tensors(), other.tensors()
    for name, x in mine.items():
        y = theirs.get(name)
        if y is None or x.dtype != y.dtype or x.device != y.device or _kind(name, x) != _kind(name, y):
            raise SelattnError(f"the {name.replace('_', ' ')} of these two caches differ: they must be of one model")


def _kind(name: str, x: Tensor) -> tuple[int, ...]:
    """The shape of a row but for its slots."""
    if name in ("keys", "values", "selection_keys"):
        return (x.shape[1], x.shape[3])
    return tuple(x.shape[1:-1])
