"""What a model does with one text, token by token: the data behind figures and the explorer.

    found = trace("zoo:memory", "a text", runs=[("selective", 32)])
    found.F(0)               # [N, N] of layer 0: how much a row finds each earlier token masked
    found.S(0)               # [N, N] who masked whom, and how much
    found.weights(0)         # [N, N] attention, a mean over the heads
    found.evicted_at(0)      # [L, N] of the first run: the row from which a token is gone; N if it stays
    found.save("trace.json") # from which every figure can be drawn again without the model

F and the weights are those of the forward without budgets. F and S are rounded to a step that the record states; when
tokens leave is exact, from forwards with the budgets in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selattn.cache import Budgets, Policy, make_policy
from selattn.errors import NotFiniteError, SelattnError
from selattn.models.loading import Loaded, load
from selattn.models.seam import LanguageModel, WatchedModel
from selattn.utils.records import read_record, write_record
from selattn.views.packed import Floats, Ints, pack_rising, pack_shares, pack_steps, unpack, unpack_steps
from selattn.views.reading import Words, read

STEP = 1 / 32  # of F: e^-F is right to 1.6%
Run = tuple[str | Policy, Budgets | int | Sequence[int]]
Model = str | Path | Loaded | LanguageModel


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


def trace(
    model: Model,
    text: str | Words,
    runs: Iterable[Run] = (),
    *,
    limit: int | None = None,
    step: float = STEP,
    name: str | None = None,
) -> Trace:
    """Run a model on a text and keep what pictures need of it.

    Args:
        model: a folder, a run's folder, zoo:NAME, what `selattn.load` gives for one of them, or a model itself.
        text: the text itself, or words that have been read.
        runs: policies and budgets for which to find out when each token leaves.
        limit: at most so many tokens; the model's context size by default.
        step: F is rounded to multiples of this.
        name: of the model, in titles; by default as it was given.
    """
    loaded, called, words = prepared(model, text)
    about = loaded.description
    most = min(limit or about.context, about.context)
    if most < 2:
        raise SelattnError(f"a picture needs at least 2 tokens, not {most}")
    ids, tokens = words.ids[:most], words.tokens[:most]
    row = torch.tensor([ids], device=loaded.device)
    return Trace(
        model=name or called,
        tokens=tokens,
        ids=ids,
        kinds=[kind.text for kind in about.kinds],
        shift=about.shift,
        cut_from=len(words.ids),
        packed=_layers(loaded, row, step),
        runs=[leaving(loaded, row, policy, budgets) for policy, budgets in runs],
    )


def leaving(
    model: WatchedModel, ids: Tensor, policy: str | Policy, budgets: Budgets | int | Sequence[int]
) -> dict[str, Any]:
    """One forward with budgets in force: when each token of ids [1, N] left each layer."""
    chosen, size = make_policy(policy), ids.shape[1]
    found = Budgets.of(budgets)
    assert found is not None
    each = found.for_layers(model.description.layers)
    with torch.no_grad():
        evicted = model.evictions(ids, found, chosen)
    steps = torch.stack([at[0].amax(0).clamp(max=size) for at in evicted])
    return {
        "policy": chosen.name,
        "budgets": list(each),
        "per_head": chosen.per_head,
        "evicted_at": pack_steps(steps.cpu().numpy()),
    }


def smallest_f(f: Tensor | None) -> Floats | None:
    """[N, N] of F [1, S, N, N]: of several masks the smallest, by which tokens are evicted."""
    return None if f is None else f[0].float().amin(0).cpu().numpy()


def _layers(model: WatchedModel, ids: Tensor, step: float) -> list[dict[str, Any]]:
    """Layer by layer, so that no more than one layer's weights are ever held."""
    found: list[dict[str, Any]] = []
    with torch.no_grad():
        for view in model.watch(ids):
            assert view.weights is not None
            if not bool(view.weights.isfinite().all()):
                raise NotFiniteError(f"the attention weights of layer {len(found)} are NaN")
            F, mean = smallest_f(view.f), view.weights[0].float().mean(0).cpu().numpy()
            found.append({"f": None if F is None else pack_rising(F, step), "weights": pack_shares(mean)})
    return found


def prepared(model: Model, text: str | Words) -> tuple[WatchedModel, str, Words]:
    """The model, its name, and the words of the text."""
    loaded = load(model)
    words = text if isinstance(text, Words) else read(loaded, text)
    return watched(loaded.model), loaded.name, words


def watched(model: LanguageModel) -> WatchedModel:
    """The model, if pictures can be made of it."""
    if not isinstance(model, WatchedModel):
        raise SelattnError(f"no picture can be made of a {type(model).__name__}: it has no watch() and evictions()")
    return model
