"""Figure 10: whether two trainings, with other first weights and another order of the data, come to the same F."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from matplotlib.figure import Figure

from lab.engine.frame import Cell, Claim, Experiment, Found, Need, Reproduction
from lab.engine.lab import Lab
from lab.engine.pictures import correlation, lower, mean_over_texts, stored
from lab.engine.trio import trio
from lab.runs.scales import Scale
from selattn.evaluation.traces import MeanF
from selattn.views.plot import stability


def _seeds(seeds: Sequence[int]) -> list[int]:
    """The seeds, at least two of them."""
    return list(seeds) if len(seeds) > 1 else [seeds[0], seeds[0] + 1]


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """Selective models of several seeds."""
    return trio(scale, _seeds(seeds), kinds=("selective",))


def evaluate(lab: Lab) -> Found:
    """The correlation of the averages of two trainings in the same layer, beside that of different layers."""
    seeds = _seeds(lab.seeds)
    means = [mean_over_texts(lab, lab.trained("selective", seed), f"selective, seed {seed}") for seed in seeds]
    flat = [[np.log1p(lower(mean.F(layer))) for layer in range(mean.layers)] for mean in means]
    pairs = list(combinations(range(len(seeds)), 2))
    layers = range(means[0].layers)
    found = {(i, j): tuple(correlation(flat[a][i], flat[b][j]) for a, b in pairs) for i in layers for j in layers}
    what = "correlation of log(1 + F) in two trainings"
    cells = [Cell(f"layer {layer}", what, found[layer, layer], digits=2) for layer in layers]
    same, others = ([values for (i, j), values in found.items() if (i == j) == alike] for alike in (True, False))
    more = tuple(_less([each[k] for each in same], [each[k] for each in others]) for k in range(len(pairs)))
    claim = Claim(
        "Sparsity patterns are sometimes stable across trainings.", more,
        "mean correlation of the same layer less that of different layers", digits=2,
    )  # fmt: skip
    details = {"first": stored(means[0]), "second": stored(means[1])}
    return Found(tuple(cells), (claim,), details=details)


def conclude(record: Reproduction) -> Reproduction:
    """Which trainings a number is of, and what is to be known of it."""
    names = [f"{a} and {b}" for a, b in combinations(_seeds(record.seeds), 2)]
    notes = (
        "A number for each pair of trainings; three trainings make three pairs, which are not independent.",
        "F grows with distance in every layer, so that different layers are alike, too.",
    )
    return replace(record, settings={**record.settings, "values": names}, notes=notes)


def _less(same: Sequence[float | None], others: Sequence[float | None]) -> float | None:
    """The mean of one pair of trainings' correlations less that of others; None where none is known."""
    means = [[value for value in values if value is not None] for values in (same, others)]
    return float(np.mean(means[0]) - np.mean(means[1])) if all(means) else None


def draw(record: Reproduction) -> Figure:
    """The first two trainings side by side."""
    return stability(MeanF.from_json(record.details["first"]), MeanF.from_json(record.details["second"]))


EXPERIMENT = Experiment(
    name="stability",
    paper="Figure 10",
    sentence="F averaged over many texts in two trainings",
    needs=needs,
    evaluate=evaluate,
    figure=draw,
    conclude=conclude,
)
