"""F averaged over many texts: whether a layer always masks the same distances, whatever it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selattn.errors import SelattnError
from selattn.evaluation.text import Text
from selattn.models.loading import TRAINING, load
from selattn.models.seam import WatchedModel
from selattn.training.config import current_names
from selattn.training.identity import deciding_settings
from selattn.utils.progress import Progress
from selattn.utils.records import read_record, write_record
from selattn.utils.typed import flat
from selattn.views.packed import Floats, pack_rising, unpack
from selattn.views.trace import STEP, smallest_f, watched


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

    def trained_unlike(self, other: MeanF) -> list[str] | None:
        """The settings, but for the seed, in which two trainings differ; None where one has no record."""
        if self.run is None or other.run is None:
            return None
        one, two = (dict(flat(deciding_settings(each))) for each in (self.run, other.run))
        names = [name for name, value in {**one, **two}.items() if name != "seed" and value != {}]
        return [name for name in names if one.get(name) != two.get(name)]

    def to_json(self) -> dict[str, Any]:
        """As it stands in a record."""
        return {"mean_f": {name: getattr(self, name) for name in self.__dataclass_fields__}}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> MeanF:
        """The mean that a record holds; refuses one that is not whole."""
        try:
            found = cls(**record["mean_f"])
            if found.run is not None:
                deciding_settings(found.run)
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


def mean_f(
    model: str | Path,
    text: Text,
    rows: int = 100,
    *,
    limit: int | None = None,
    step: float = STEP,
    progress: Progress | None = None,
) -> MeanF:
    """The mean of F over so many documents of a text that are at least as long as the context.

    Args:
        model: a folder, a run's folder, or zoo:NAME.
        text: where documents are read from.
        rows: how many; an error if there are fewer.
        limit: tokens of a row, the model's context size by default.
        step: the mean is rounded to multiples of this.
        progress: is told of every row; None shows nothing.
    """
    loaded = load(model)
    size = min(limit or loaded.description.context, loaded.description.context)
    found = []
    for row in text.rows(loaded.tokenizer, size).take():
        if "attention_mask" not in row or bool(row["attention_mask"].all()):
            found.append(row["input_ids"])
        if len(found) == rows:
            break
    if rows < 1 or len(found) < rows:
        raise SelattnError(
            f"{text.source} has {len(found)} documents of {size} tokens, and {rows} were asked for: give more text, "
            "fewer --rows, or fewer --tokens"
        )
    packed = average(watched(loaded.model), found, step, progress)
    return MeanF(str(model), text.source, rows, size, packed, _run_of(loaded.folder))


def _run_of(folder: Path) -> dict[str, Any] | None:
    """What the record of the training beside a model says of its settings, if there is one."""
    if not (folder / TRAINING).is_file():
        return None
    found = read_record(folder / TRAINING).get("run")
    return current_names(found) if isinstance(found, dict) else None


def average(
    model: WatchedModel,
    rows: Sequence[Tensor],
    step: float = STEP,
    progress: Progress | None = None,
) -> list[dict[str, Any] | None]:
    """The mean of F of each layer over rows [N] of token ids, packed."""
    progress = progress or Progress()
    progress.begin(len(rows), "F of texts")
    sums: list[Any] = [None] * model.description.layers
    count = 0
    with torch.no_grad():
        for row in rows:
            for number, view in enumerate(model.watch(row[None].to(model.device), weights=False)):
                F = smallest_f(view.f)
                if F is not None:
                    sums[number] = F.astype(np.float64) if sums[number] is None else sums[number] + F
            count += 1
            progress.advance()
    progress.end()
    return [None if total is None else pack_rising(total / count, step) for total in sums]
