"""Figure 11: what remains in the cache after pruning, and how budgets go with the mean F of their layer."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib.figure import Figure

from selattn.evaluation.searches import read_path
from selattn.report.examples import PAPER
from selattn.report.plot import kept
from selattn.report.trace import Trace
from selattn.reproduction.frame import Cell, Claim, Experiment, Found, Need, Reproduction
from selattn.reproduction.lab import Lab
from selattn.reproduction.pictures import lower, mean_over_texts, rank_correlation, stored, traced
from selattn.reproduction.pruned import at_limit, search
from selattn.reproduction.scales import Scale
from selattn.reproduction.trio import trio

_PAPER = (8, 48, 8, 8, 24, 8, 168, 16, 8, 64, 8, 8)  # of its d=12 model, 16 times less


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """The model with the memory loss, and the standard one whose loss it is pruned to."""
    return trio(scale, seeds, kinds=("standard", "memory"))


def evaluate(lab: Lab) -> Found:
    """Budgets at the standard model's loss, or if that is never reached those of a quarter."""
    budgets, means = [], []
    for seed in lab.seeds:
        model = lab.trained("memory", seed)
        folder = search(lab, model)
        found = at_limit(lab, model, folder, lab.trained("standard", seed))
        path = read_path(folder)
        quarter = min(path, key=lambda step: abs(step.factor - 4)).budgets
        budgets.append(quarter if found is None else found.budgets)
        mean = mean_over_texts(lab, model, f"memory loss, seed {seed}")
        means.append([float(lower(mean.F(layer)).mean()) for layer in range(mean.layers)])
    cells = []
    for layer in range(len(budgets[0])):
        cells.append(Cell(f"layer {layer}", "budget", tuple(float(each[layer]) for each in budgets), digits=0))
        cells.append(Cell(f"layer {layer}", "mean F", tuple(each[layer] for each in means), digits=1))
    together = tuple(rank_correlation(k, f) for k, f in zip(budgets, means, strict=True))
    claim = Claim(
        "The larger a layer's budget, the smaller its F.", together,
        "rank correlation of budgets and mean F over the layers", side="below", digits=2,
    )  # fmt: skip
    shown = traced(lab.trained("memory", lab.seeds[0]), PAPER, [("selective", list(budgets[0]))])
    notes = (
        f"The paper's budgets are {list(_PAPER)}, a mean of {statistics.fmean(_PAPER):.1f} tokens at a context of 512, "
        "for d=12; it gives no number for how they go with F.",
    )
    return Found(tuple(cells), (claim,), notes, stored(shown))


def draw(record: Reproduction) -> Figure:
    """What the first seed's model keeps of the paper's example text."""
    return kept(Trace.from_json(record.details))


EXPERIMENT = Experiment(
    name="persisted",
    paper="Figure 11",
    sentence="what remains in the cache after pruning, layer by layer",
    needs=needs,
    evaluate=evaluate,
    figure=draw,
)
