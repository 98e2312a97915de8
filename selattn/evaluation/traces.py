"""What was seen of models that read texts, as records have it: the data behind figures and the explorer.

Nothing here needs a model, or torch. Large arrays are short strings in JSON: quantised, deflated, base64. A browser and
numpy read them alike.

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selattn.errors import SelattnError
from selattn.utils.records import read_record, write_record

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

LARGEST = 2**15 - 1  # of a difference, in steps


@dataclass(frozen=True)
class Trace:
    """A model on a text. N tokens, L layers.

    Attributes:
        model: as the user named it.
        tokens: [N] as people write them.
        ids: [N].
        kinds: [L] the attention of each layer: "selective", "standard", "local:32" and so on.
        shift: whether a token's selection counts for later tokens only.
        cut_from: how many tokens the text had before it was cut.
        packed: for each layer F, or None in a layer that does not select, and the weights.
        runs: forwards with budgets: policy, budgets, per_head and when each token left.
    """

    model: str
    tokens: list[str]
    ids: list[int]
    kinds: list[str]
    shift: bool
    cut_from: int
    packed: list[dict[str, Any]]
    runs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return len(self.tokens)

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self.kinds)

    @property
    def step(self) -> float:
        """The coarsest step of F over the layers."""
        return max((layer["f"]["step"] for layer in self.packed if layer["f"] is not None), default=0.0)

    def F(self, layer: int) -> Floats:
        """[N, N]: row i finds token j masked so much. 0 in a layer that does not select."""
        packed = self._layer(layer)["f"]
        return np.zeros((self.size, self.size), np.float32) if packed is None else unpack(packed)

    def S(self, layer: int) -> Floats:
        """[N, N]: so much did row i add to the masking of token j. What the last row selects is for tokens to come."""
        F = self.F(layer)
        rises = np.tril(np.diff(F, axis=0, prepend=np.float32(0)))
        if not self.shift:
            return rises
        return np.tril(np.concatenate([rises[1:], np.zeros_like(rises[:1])]))

    def weights(self, layer: int) -> Floats:
        """[N, N]: how much of row i's attention token j gets, a mean over the heads."""
        return unpack(self._layer(layer)["weights"])

    def evicted_at(self, run: int = 0) -> Ints:
        """[L, N]: the row from which a token is gone, N if it stays; of heads that evict alone, the last to let go."""
        if not 0 <= run < len(self.runs):
            raise SelattnError(
                f"this trace has {len(self.runs)} runs with budgets: trace it with runs=[(policy, budgets)]"
            )
        return unpack_steps(self.runs[run]["evicted_at"], self.layers, self.size)

    def kept(self, layer: int, run: int = 0) -> NDArray[np.bool_]:
        """[N, N]: whether token j is in the cache of the layer when row i attends."""
        rows = np.arange(self.size)
        return (rows[None, :] <= rows[:, None]) & (rows[:, None] < self.evicted_at(run)[layer][None, :])

    def to_json(self) -> dict[str, Any]:
        """As it stands in a record."""
        return {"trace": {name: getattr(self, name) for name in self.__dataclass_fields__}}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Trace:
        """The trace that a record holds; refuses one that is not whole."""
        try:
            found = cls(**record["trace"])
            sizes = {part["size"] for layer in found.packed for part in layer.values() if part is not None}
            if len(found.packed) != found.layers or sizes != {found.size} or len(found.ids) != found.size:
                raise ValueError
            for run in range(len(found.runs)):
                found.evicted_at(run)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise SelattnError(
                "this is no whole record of a trace: make it with 'selattn plot ... --record FILE'"
            ) from None
        return found

    def save(self, path: str | Path) -> Path:
        """Write it as a record; returns the path."""
        return write_record(path, self.to_json(), None)

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """The trace that `save` wrote."""
        return cls.from_json(read_record(path))

    def _layer(self, layer: int) -> dict[str, Any]:
        if not 0 <= layer < self.layers:
            raise SelattnError(f"there is no layer {layer}: the model has layers 0 to {self.layers - 1}")
        return self.packed[layer]


@dataclass(frozen=True)
class MeanF:
    """The mean of F over texts of N tokens.

    Attributes:
        model: as the user named it.
        text: where the rows are from.
        rows: how many.
        size: N.
        packed: F of each layer; None in a layer that does not select.
        run: the settings of the model's training, if there is a record of it.
    """

    model: str
    text: str
    rows: int
    size: int
    packed: list[dict[str, Any] | None]
    run: dict[str, Any] | None = None

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self.packed)

    def F(self, layer: int) -> Floats:
        """[N, N], the mean."""
        packed = self.packed[layer]
        return np.zeros((self.size, self.size), np.float32) if packed is None else unpack(packed)

    def to_json(self) -> dict[str, Any]:
        """As it stands in a record."""
        return {"mean_f": {name: getattr(self, name) for name in self.__dataclass_fields__}}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> MeanF:
        """The mean that a record holds; refuses one that is not whole."""
        try:
            found = cls(**record["mean_f"])
            if found.run is not None and not isinstance(found.run["data"], dict):
                raise ValueError
            for layer in range(found.layers):
                if found.F(layer).shape != (found.size, found.size):
                    raise ValueError
        except (KeyError, TypeError, ValueError):
            raise SelattnError("this is no whole record of a mean: make it with 'selattn plot masking-mean'") from None
        return found

    def save(self, path: str | Path) -> Path:
        """Write it as a record; returns the path."""
        return write_record(path, self.to_json(), None)

    @classmethod
    def load(cls, path: str | Path) -> MeanF:
        """The mean that `save` wrote."""
        return cls.from_json(read_record(path))


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
