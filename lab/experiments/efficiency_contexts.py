"""Section 6.2: how the memory that is saved grows with the context size."""

from __future__ import annotations

from collections.abc import Sequence

from lab.engine.frame import Cell, Claim, Experiment, Found, Need
from lab.engine.lab import Lab
from lab.engine.pruned import ALL, GAIN, LONG, curve_of, factor_at, tradeoff, whole
from lab.engine.trio import KINDS, TITLES, with_seeds
from lab.experiments.efficiency import CURVES, base_loss
from lab.runs.scales import Scale

# By context: selective, with the memory loss, that on long examples, and keeping the gain; d=12.
_PAPER = {512: (5.0, 16.0, 12.0, 3.0), 1024: (7.0, 25.0, 18.0, 4.0), 2048: (8.0, 47.0, 24.0, 4.0)}

_EQUAL, _LONG = "at the standard loss, all documents", "at the standard loss, long documents"
_GAIN = "keeping the gain, all documents"


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """The three kinds at every context size; the paper's have 128 rows in a batch."""
    batch = 128 if scale.name == "paper" else None
    runs = {
        f"{kind}, {context} tokens": scale.run(kind, context=context, batch=batch)
        for context in sorted(scale.contexts)
        for kind in KINDS
    }
    return with_seeds(runs, seeds)


def evaluate(lab: Lab) -> Found:
    """The factors at each context size, on unseen documents."""
    cells, at = [], {}
    for context in sorted(lab.scale.contexts):
        found = [tradeoff(lab, seed, others=False, suffix=f", {context} tokens") for seed in lab.seeds]
        for kind, curve in CURVES.items():
            points = [curve_of(each, curve).points for each in found]
            own = [whole(each, ALL) + GAIN for each in points]
            for what, text, limits in (
                (_EQUAL, ALL, [base_loss(each, ALL) for each in found]),
                (_LONG, LONG, [base_loss(each, LONG) for each in found]),
                (_GAIN, ALL, own),
            ):
                values = tuple(
                    factor_at(each, text, limit, context) for each, limit in zip(points, limits, strict=True)
                )
                at[context, kind, what] = values
                row = f"{context} tokens: times less memory {what}"
                cells.append(Cell(row, TITLES[kind], values, _paper(context, kind, what), digits=1))
    low, high = min(lab.scale.contexts), max(lab.scale.contexts)
    claims = [
        Claim(
            f"The memory that is saved grows with the context ({TITLES[kind]}).",
            tuple(
                None if a is None or b is None else a / b
                for a, b in zip(at[high, kind, _EQUAL], at[low, kind, _EQUAL], strict=True)
            ),
            f"factor at {high} tokens over the factor at {low}",
            than=1.0,
            paper=paper,
            digits=2,
        )
        for kind, paper in (("selective", 1.6), ("memory", 2.9))
    ]
    lab.settings["gain"] = GAIN
    notes = (
        f"Factors where the curve on unseen documents crosses the loss; the gain counts as kept within {GAIN} nats.",
        "The paper: contexts of 512, 1,024 and 2,048, d=12.",
    )
    return Found(tuple(cells), tuple(claims), notes)


def _paper(context: int, kind: str, what: str) -> float | None:
    if context not in _PAPER:
        return None
    selective, memory, long, gain = _PAPER[context]
    places = {("selective", _EQUAL): selective, ("selective", _GAIN): gain}
    places |= {("memory", _EQUAL): memory, ("memory", _LONG): long}
    return places.get((kind, what))


EXPERIMENT = Experiment(
    name="efficiency-contexts",
    paper="Figure 6 and section 6.2, by context size",
    sentence="how the memory that is saved grows with the context size",
    needs=needs,
    evaluate=evaluate,
)
