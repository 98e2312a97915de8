"""What pictures of F show, as numbers: how dense a layer is, and how alike texts and trainings are."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lab.engine.lab import Lab
from lab.engine.store import Trained
from selattn.data.task import Task
from selattn.evaluation.text import Text
from selattn.evaluation.traces import MeanF, Trace
from selattn.evaluation.tracing import Run, Words, mean_f, smallest_f, trace, watched
from selattn.models.loading import load

ALIVE = 1.0  # a pair with F below it is alive: what the memory loss counts, tau
Floats = NDArray[np.floating[Any]]


def traced(model: Trained, text: str | Words, runs: Sequence[Run] = (), name: str | None = None) -> Trace:
    """What a model does with a text, which may be longer than its context."""
    return trace(model.model, text, runs, name=name or model.need.run.name)


def sample(model: Trained, seed: int = 0) -> Words:
    """A sample of the task that a model was trained on."""
    task = model.need.run.data
    assert isinstance(task, Task)
    ids = task.dataset(seed, 1)[0]["input_ids"].tolist()
    return Words(ids, [task.tokens[i] if place == 0 else f" {task.tokens[i]}" for place, i in enumerate(ids)])


def stored(found: Trace | MeanF) -> dict[str, Any]:
    """For the details of a record."""
    return found.to_json()


def lower(F: Floats) -> Floats:
    """The pairs of a row and an earlier token, but for the first, which is never masked; flat."""
    size = F.shape[0]
    rows, columns = np.tril_indices(size, -1)
    return np.asarray(F)[rows, columns][columns > 0]


def alive(F: Floats) -> float:
    """The share of pairs with F below 1."""
    return float((lower(F) < ALIVE).mean())


def shares_by_text(lab: Lab, model: Trained, count: int) -> list[list[float]]:
    """For so many held-out documents that fill the context the share of living pairs of each layer."""
    loaded = load(model.model)
    context = loaded.description.context
    key = {"part": "alive", "model": loaded.fingerprint, "count": count, "text": lab.tokens(loaded)}

    def measure() -> list[list[float]]:
        found = []
        with torch.no_grad():
            for ids in full_rows(lab, model, count, context):
                views = watched(loaded.model).watch(torch.tensor([ids]), weights=False)
                found.append([alive(F) for view in views if (F := smallest_f(view.f)) is not None])
        return found

    return lab.part(key, list[list[float]], measure)


def full_rows(lab: Lab, model: Trained, count: int, context: int) -> list[list[int]]:
    """Token ids of held-out documents that fill the context, at most so many."""
    rows = lab.text().rows(load(model.model).tokenizer, context).take()
    full = [
        row["input_ids"].tolist() for row in rows if "attention_mask" not in row or bool(row["attention_mask"].all())
    ]
    return full[:count]


def mean_over_texts(lab: Lab, model: Trained, name: str) -> MeanF:
    """F averaged over held-out documents, as many as the scale asks for or as there are."""
    context = load(model.model).description.context
    count = len(full_rows(lab, model, lab.scale.mean_rows, context))
    text: Text = lab.text()
    found = mean_f(model.model, text, count, step=1 / 8)
    return dataclasses.replace(found, model=name)


def correlation(these: Sequence[float] | Floats, those: Sequence[float] | Floats) -> float | None:
    """Pearson's; None where one of them does not vary."""
    a, b = np.asarray(these, float), np.asarray(those, float)
    if len(a) < 2 or a.std() == 0 or b.std() == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def rank_correlation(these: Sequence[float], those: Sequence[float]) -> float | None:
    """Spearman's; equal values share the mean of their ranks."""
    return correlation(_ranks(these), _ranks(those))


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [statistics.fmean(place for place, other in enumerate(ordered) if other == value) for value in values]
