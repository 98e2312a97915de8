"""Figure 11: what remains in the cache after pruning, and how budgets go with the mean F of their layer."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from lab.engine.frame import Cell, Claim, Experiment, Found, Need, Reproduction
from lab.engine.lab import Lab
from lab.engine.pictures import lower, mean_over_texts, rank_correlation, stored, traced
from lab.engine.pruned import at_limit, search
from lab.engine.trio import trio
from lab.runs.scales import Scale
from selattn.evaluation.examples import PAPER
from selattn.evaluation.traces import Trace
from selattn.pruning.folder import read_path
from selattn.views.plot import kept

_PAPER = (8, 48, 8, 8, 24, 8, 168, 16, 8, 64, 8, 8)  # of its d=12 model, 16 times less

_BUDGET, _MEAN, _WHOLE = "budget", "mean F", "all layers"  # columns, and the row of what is said of all
_QUARTER = 4  # times less memory, where the standard model's loss is never met


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """The model with the memory loss, and the standard one whose loss it is pruned to."""
    return trio(scale, seeds, kinds=("standard", "memory"))


def evaluate(lab: Lab) -> Found:
    """Budgets at the standard model's loss, or if that is never reached those of a quarter of the memory."""
    budgets, means = [], []
    for seed in lab.seeds:
        model = lab.trained("memory", seed)
        folder = search(lab, model)
        found = at_limit(lab, model, folder, lab.trained("standard", seed))
        path = read_path(folder)
        quarter = min(path, key=lambda step: abs(step.factor - _QUARTER)).budgets
        budgets.append(quarter if found is None else found.budgets)
        mean = mean_over_texts(lab, model, f"memory loss, seed {seed}")
        means.append([float(lower(mean.F(layer)).mean()) for layer in range(mean.layers)])
    cells = []
    for layer in range(len(budgets[0])):
        cells.append(Cell(f"layer {layer}", _BUDGET, tuple(float(each[layer]) for each in budgets), digits=0))
        cells.append(Cell(f"layer {layer}", _MEAN, tuple(each[layer] for each in means), digits=1))
    shown = traced(lab.trained("memory", lab.seeds[0]), PAPER, [("selective", list(budgets[0]))])
    return Found(tuple(cells), details=stored(shown))


def conclude(record: Reproduction) -> Reproduction:
    """The factor of each seed's budgets, and how they go with F."""
    layers = [cell.row for cell in record.cells if cell.column == _BUDGET and cell.row != _WHOLE]
    budgets, means = (
        [tuple(map(float, each)) for each in zip(*(record.cell(row, column).values for row in layers), strict=True)]
        for column in (_BUDGET, _MEAN)
    )
    context = int(record.models[0].run["data"]["context"])
    factors = tuple(len(layers) * context / sum(each) for each in budgets)
    cells = [cell for cell in record.cells if cell.row != _WHOLE]
    cells.append(Cell(_WHOLE, "times less memory", factors, paper=16.0, digits=1))
    claim = Claim(
        "The larger a layer's budget, the smaller its F.",
        tuple(rank_correlation(k, f) for k, f in zip(budgets, means, strict=True)),
        f"rank correlation of budgets and mean F over {len(layers)} layers", side="below", digits=2,
    )  # fmt: skip
    notes = (
        f"Budgets at the standard model's loss; of a seed that is above it with everything kept, those of {_QUARTER} "
        "times less memory.",
        f"The paper's budgets are {list(_PAPER)}, a mean of {statistics.fmean(_PAPER):.1f} tokens at a context of 512, "
        "for d=12; it gives no number for how they go with F.",
    )
    return replace(record, cells=tuple(cells), claims=(claim,), notes=notes)


def draw(record: Reproduction) -> Figure:
    """What the first seed's model keeps of the paper's example text."""
    return kept(Trace.from_json(record.details))


EXPERIMENT = Experiment(
    name="persisted",
    paper="Figure 11",
    sentence="what remains in the cache after pruning, layer by layer",
    needs=needs,
    evaluate=evaluate,
    conclude=conclude,
    figure=draw,
)
