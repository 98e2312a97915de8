"""Figure 5: F of the paper's own example text, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from lab.engine.frame import Cell, Claim, Experiment, Found, Need, Reproduction
from lab.engine.lab import Lab
from lab.engine.pictures import alive, lower, stored, traced
from lab.engine.trio import trio
from lab.runs.scales import Scale
from selattn.evaluation.examples import PAPER
from selattn.evaluation.traces import Trace
from selattn.views.plot import masking


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """The selective model of each seed."""
    return trio(scale, seeds, kinds=("selective",))


def evaluate(lab: Lab) -> Found:
    """How dense each layer is on that text."""
    traces = [traced(lab.trained("selective", seed), PAPER) for seed in lab.seeds]
    cells, shares = [], []
    for layer in range(traces[0].layers):
        living = tuple(alive(each.F(layer)) for each in traces)
        shares.append(living)
        cells.append(Cell(f"layer {layer}", "pairs alive, F < 1", living, digits=1, percent=True))
        cells.append(
            Cell(f"layer {layer}", "mean F", tuple(float(lower(each.F(layer)).mean()) for each in traces), digits=1)
        )
    ratio = tuple(max(each) / max(min(each), 1e-6) for each in zip(*shares, strict=True))
    claim = Claim(
        "Some layers are mostly dense, others are sparse.", ratio,
        "pairs alive in the densest layer over those in the sparsest", than=2.0, digits=1,
    )  # fmt: skip
    return Found(tuple(cells), (claim,), (f"The first {traces[0].size} tokens of the text.",), stored(traces[0]))


def draw(record: Reproduction) -> Figure:
    """F of the first seed's model."""
    return masking(Trace.from_json(record.details))


EXPERIMENT = Experiment(
    name="f-of-a-text",
    paper="Figure 5",
    sentence="F of the paper's own example text",
    needs=needs,
    evaluate=evaluate,
    figure=draw,
)
