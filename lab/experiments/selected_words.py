"""Figure 12: what the last token of the paper's example text finds masked, word by word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lab.engine.frame import Cell, Claim, Experiment, Found, Need, Reproduction
from lab.engine.lab import Lab
from lab.engine.pictures import ALIVE, stored, traced
from lab.engine.trio import trio
from lab.engine.verdicts import differences
from lab.runs.scales import Scale
from selattn.evaluation.examples import PAPER
from selattn.evaluation.traces import Trace
from selattn.views.plot import words

_NEAR = 16  # tokens


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """The selective model of each seed."""
    return trio(scale, seeds, kinds=("selective",))


def evaluate(lab: Lab) -> Found:
    """The last row of F of every layer, and the text as the models read it."""
    traces = [traced(lab.trained("selective", seed), PAPER) for seed in lab.seeds]
    ends = [_end(each) for each in traces]
    return Found(details={**stored(traces[0]), "ends": ends})


def _end(found: Trace) -> dict[str, Any]:
    """What a claim needs of a trace."""
    return {
        "tokens": list(found.tokens),
        "kept": [(found.F(layer)[-1] < ALIVE).tolist() for layer in range(found.layers)],
    }


def conclude(record: Reproduction) -> Reproduction:
    """How much of the text each layer still sees from the end, of full stops and of other tokens."""
    ends = record.details.get("ends") or [_end(Trace.from_json(record.details))]
    seeds = record.seeds[: len(ends)]
    cells, most = [], []
    for layer in range(len(ends[0]["kept"])):
        shares = [_shares(end["tokens"], end["kept"][layer]) for end in ends]
        found = [tuple(each[k] for each in shares) for k in range(3)]
        for name, values in zip(("tokens kept", "full stops kept", "other tokens kept"), found, strict=True):
            cells.append(Cell(f"layer {layer}", name, values, digits=1, percent=True))
        most.append(differences(found[1], found[2]))
    best = tuple(max((v for v in values if v is not None), default=None) for values in zip(*most, strict=True))
    claim = Claim(
        "Some layer persists the full stops.", best,
        "full stops kept less other tokens kept, in the layer where that is most",
        than=0.1, digits=2,
    )  # fmt: skip
    notes = [
        f"Kept: F < 1 in the last row. The last {_NEAR} tokens are left out: what is near is kept, whatever it is.",
    ]
    if len(ends) < len(record.models):
        notes.append("Of other seeds the last row of F was not recorded.")
    return replace(record, seeds=seeds, cells=tuple(cells), claims=(claim,), notes=tuple(notes))


def _shares(tokens: Sequence[str], kept: Sequence[bool]) -> tuple[float | None, float | None, float | None]:
    """Of all tokens but the last few, of full stops, and of the others."""
    alive = np.array(kept[:-_NEAR], dtype=bool)
    stops = np.array([token.strip() == "." for token in tokens[:-_NEAR]], dtype=bool)

    def share(chosen: NDArray[np.bool_]) -> float | None:
        return float(alive[chosen].mean()) if chosen.any() else None

    return share(np.ones_like(stops)), share(stops), share(~stops)


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
    conclude=conclude,
)
