"""Figure 12: what the last token of the paper's example text finds masked, word by word."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from selattn.report.examples import PAPER
from selattn.report.plot import words
from selattn.report.trace import Trace
from selattn.reproduction.frame import Cell, Claim, Experiment, Found, Need, Reproduction
from selattn.reproduction.lab import Lab
from selattn.reproduction.pictures import ALIVE, stored, traced
from selattn.reproduction.scales import Scale
from selattn.reproduction.trio import trio


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """The selective model of each seed."""
    return trio(scale, seeds, kinds=("selective",))


def evaluate(lab: Lab) -> Found:
    """How much of the text each layer still sees from the end, of full stops and of other tokens."""
    traces = [traced(lab.trained("selective", seed), PAPER) for seed in lab.seeds]
    cells, most = [], []
    for layer in range(traces[0].layers):
        kept = [each.F(layer)[-1] < ALIVE for each in traces]
        stops = [np.array([token.strip() == "." for token in each.tokens]) for each in traces]
        of_stops = tuple(float(k[s].mean()) if s.any() else None for k, s in zip(kept, stops, strict=True))
        others = tuple(float(k[~s].mean()) for k, s in zip(kept, stops, strict=True))
        cells.append(
            Cell(f"layer {layer}", "tokens kept", tuple(float(k.mean()) for k in kept), digits=1, percent=True)
        )
        cells.append(Cell(f"layer {layer}", "full stops kept", of_stops, digits=1, percent=True))
        most.append(tuple(None if a is None else a - b for a, b in zip(of_stops, others, strict=True)))
    best = tuple(max((v for v in values if v is not None), default=None) for values in zip(*most, strict=True))
    claim = Claim(
        "Some layer persists the full stops.", best,
        "full stops kept less other tokens kept, in the layer where that is most",
        than=0.1, digits=2,
    )  # fmt: skip
    return Found(tuple(cells), (claim,), ("Kept: F < 1 in the last row.",), stored(traces[0]))


def draw(record: Reproduction) -> Figure:
    """The words of the first seed's model."""
    return words(Trace.from_json(record.details))


EXPERIMENT = Experiment(
    name="selected-words",
    paper="Figure 12",
    sentence="what the last token finds masked, word by word",
    needs=needs,
    evaluate=evaluate,
    figure=draw,
)
