"""Appendix A.5: selection without relu, which can strengthen tokens for good; the paper's does not converge."""

from __future__ import annotations

from collections.abc import Sequence

from selattn.reproduction.frame import Claim
from selattn.reproduction.grids import Less, Losses, Variant, by_positions, loss_table
from selattn.reproduction.scales import Scale


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
    """It diverges, or ends above the standard model."""
    found = []
    for row in dict.fromkeys(each.row for each in variants(scale)):
        pairs = zip(losses.at(row, "without relu"), losses.at(row, "standard"), strict=True)
        fails = tuple(float(own is None or base is None or own > base) for own, base in pairs)
        text = f"Without relu training does not converge ({row})."
        found.append(Claim(text, fails, "1 if the run diverged or ended above the standard model, else 0", than=0.5))
    return found


EXPERIMENT = loss_table(
    name="negative-selection",
    paper="Appendix A.5",
    sentence="selection that can be negative",
    variants=variants,
    claims=claims,
    more=more,
)
