"""Large arrays as short strings in JSON: quantised, deflated, base64. A browser and numpy read them alike.

Triangle   [N, N], of which the part above the diagonal is 0: F, or attention weights
Steps      [L, N] when each token leaves each layer; N if it stays

A triangle holds entries (i, j) with j <= i in the order of rows. Each is rounded to a multiple of `step`, so that what
is unpacked is off by half a step at most. Of F the differences down each column are stored, which are S: rounding does
not add up, and S is off by one step at most.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selattn.errors import SelattnError

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

LARGEST = 2**15 - 1  # of a difference, in steps


def pack_rising(values: NDArray[Any], step: float) -> dict[str, Any]:
    """Pack F, or what changes as little from row to row; with a coarser step where the given one is too fine."""
    size = _size(values)
    exact = values.astype(np.float64)
    steepest = float(np.abs(np.diff(exact, axis=0, prepend=0.0)).max(initial=0.0))
    step = max(step, steepest / (LARGEST - 1))
    levels = np.rint(exact / step).astype(np.int64)
    rises = np.diff(levels, axis=0, prepend=0)[np.tril_indices(size)]
    folded = np.where(rises < 0, -2 * rises - 1, 2 * rises).astype("<u2")  # small numbers of either sign are small
    return {"form": "rising", "size": size, "step": step, "data": _deflated(_planes(folded))}


def pack_shares(values: NDArray[Any]) -> dict[str, Any]:
    """Pack numbers in [0, 1], in steps of 1/255."""
    size = _size(values)
    levels = np.rint(np.clip(values, 0.0, 1.0)[np.tril_indices(size)] * 255).astype(np.uint8)
    return {"form": "shares", "size": size, "step": 1 / 255, "data": _deflated(levels.tobytes())}


def pack_steps(steps: NDArray[Any]) -> str:
    """Pack [L, N] whole numbers below 65,536."""
    return _deflated(_planes(steps.astype("<u2").ravel()))


def unpack(packed: dict[str, Any]) -> Floats:
    """[N, N] as it was before `pack_rising` or `pack_shares`, to within half a step."""
    size = int(packed["size"])
    count = size * (size + 1) // 2
    rising = packed["form"] == "rising"
    raw = _inflated(packed["data"], count * (2 if rising else 1))
    found = np.zeros((size, size), np.float64)
    if rising:
        folded = _joined(raw).astype(np.int64)
        found[np.tril_indices(size)] = np.where(folded & 1, -(folded + 1) // 2, folded // 2)
        found = np.tril(found.cumsum(0))
    else:
        found[np.tril_indices(size)] = np.frombuffer(raw, np.uint8)
    return (found * float(packed["step"])).astype(np.float32)


def unpack_steps(packed: str, layers: int, size: int) -> Ints:
    """[L, N] as it was before `pack_steps`."""
    return _joined(_inflated(packed, 2 * layers * size)).astype(np.int64).reshape(layers, size)


def _size(values: NDArray[Any]) -> int:
    if values.ndim != 2 or values.shape[0] != values.shape[1] or not np.isfinite(values).all():
        raise SelattnError(f"a picture needs a square of finite numbers, not {list(values.shape)}")
    return int(values.shape[0])


def _planes(numbers: NDArray[Any]) -> bytes:
    """All low bytes, then all high bytes, which are mostly 0: that deflates better."""
    return numbers.view(np.uint8).reshape(-1, 2).T.tobytes()


def _joined(raw: bytes) -> NDArray[np.uint16]:
    low, high = np.frombuffer(raw, np.uint8).reshape(2, -1).astype(np.uint16)
    return (low | (high << 8)).astype(np.uint16)


def _deflated(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 6)).decode("ascii")


def _inflated(text: str, size: int) -> bytes:
    try:
        raw = zlib.decompress(base64.b64decode(text, validate=True))
    except (binascii.Error, zlib.error, ValueError):
        raise SelattnError("a packed picture is damaged: make the record again") from None
    if len(raw) != size:
        raise SelattnError("a packed picture is not whole: make the record again")
    return raw
