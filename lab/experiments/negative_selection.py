"""Appendix A.5: selection without relu, which can strengthen tokens for good; the paper's does not converge."""

from __future__ import annotations

from collections.abc import Sequence

from lab.engine.frame import Claim
from lab.engine.grids import Less, Losses, Variant, by_positions, loss_table
from lab.runs.scales import Scale

_FAR = 0.1  # nats: more than two trainings of selective attention lie apart


def variants(scale: Scale) -> list[Variant]:
    """Standard, without relu, and selective."""
    return [
        Variant(scale.name if not added else added.strip(", "), name, scale.run(kind, positions=positions, **settings))
        for positions, added in by_positions(scale).items()
        for name, kind, settings in (
            ("standard", "standard", {}),
            ("without relu", "selective", {"selection_relu": False}),
            ("selective", "selective", {}),
        )
    ]


def claims(scale: Scale) -> list[Less]:
    """None that compares two losses: one of the runs may have none."""
    return []


def more(scale: Scale, losses: Losses) -> Sequence[Claim]:
    """It diverges, or ends far above the selective model."""
    found = []
    for row, added in zip(
        dict.fromkeys(each.row for each in variants(scale)), by_positions(scale).values(), strict=True
    ):
        pairs = zip(losses.at(row, "without relu"), losses.at(row, "selective"), strict=True)
        fails = tuple(None if with_relu is None else _failed(own, with_relu) for own, with_relu in pairs)
        text = f"Without relu training does not converge{added}."
        what = f"1 of a run that diverged or ended {_FAR} nats above the selective model, else 0"
        found.append(Claim(text, fails, what, than=0.5, digits=0))
    return found


def _failed(own: float | None, with_relu: float) -> float:
    return float(own is None or own > with_relu + _FAR)


EXPERIMENT = loss_table(
    name="negative-selection",
    paper="Appendix A.5",
    sentence="selection that can be negative",
    variants=variants,
    claims=claims,
    more=more,
)
