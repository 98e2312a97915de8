"""Figure 9: F averaged over many texts, and how stable the sparsity of a layer is across them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib.figure import Figure

from lab.engine.frame import Cell, Claim, Experiment, Found, Need, Reproduction
from lab.engine.lab import Lab
from lab.engine.pictures import mean_over_texts, shares_by_text, stored
from lab.engine.trio import trio
from lab.runs.scales import Scale
from selattn.evaluation.traces import MeanF
from selattn.views.plot import masking_mean


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """The selective model of each seed."""
    return trio(scale, seeds, kinds=("selective",))


def evaluate(lab: Lab) -> Found:
    """The share of living pairs of each layer, and its spread over texts beside its spread over layers."""
    found = [shares_by_text(lab, lab.trained("selective", seed), lab.scale.mean_rows) for seed in lab.seeds]
    layers = len(found[0][0])
    cells, ratios = [], []
    for layer in range(layers):
        by_seed = [[text[layer] for text in texts] for texts in found]
        row = f"layer {layer}"
        cells.append(Cell(row, "pairs alive, mean", tuple(map(statistics.fmean, by_seed)), digits=1, percent=True))
        cells.append(Cell(row, "deviation over texts", tuple(map(statistics.pstdev, by_seed)), digits=1, percent=True))
    for texts in found:
        columns = list(zip(*texts, strict=True))
        between = statistics.pstdev([statistics.fmean(column) for column in columns])
        within = statistics.fmean(statistics.pstdev(column) for column in columns)
        ratios.append(within / between if between else None)
    claim = Claim(
        "The sparsity of a layer is stable across texts.", tuple(ratios),
        "deviation over texts (mean of the layers) over the deviation between layers", than=1.0, side="below", digits=2,
    )  # fmt: skip
    mean = mean_over_texts(lab, lab.trained("selective", lab.seeds[0]), f"selective, seed {lab.seeds[0]}")
    return Found(tuple(cells), (claim,), (f"{len(found[0])} held-out documents that fill the context.",), stored(mean))


def draw(record: Reproduction) -> Figure:
    """The mean of F of the first seed's model."""
    return masking_mean(MeanF.from_json(record.details))


EXPERIMENT = Experiment(
    name="mean-f",
    paper="Figure 9",
    sentence="F averaged over many texts",
    needs=needs,
    evaluate=evaluate,
    figure=draw,
)
