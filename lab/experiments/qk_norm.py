"""Section 5, QK norm: standard and selective attention without QK norm."""

from __future__ import annotations

from lab.engine.grids import Less, Variant, loss_table, pairs, smaller
from lab.runs.scales import Scale


def variants(scale: Scale) -> list[Variant]:
    """Both kinds, as usual and so."""
    return pairs({"with QK norm": {}, "without QK norm": {"qk_norm": False}}, scale)


def claims(scale: Scale) -> list[Less]:
    """The same result in each."""
    return smaller(
        list(dict.fromkeys(each.row for each in variants(scale))), "Selective attention has the smaller loss {row}."
    )


EXPERIMENT = loss_table(
    name="qk-norm",
    paper="Section 5, QK norm",
    sentence="standard and selective attention without QK norm",
    variants=variants,
    claims=claims,
    notes=('The paper, of this variant: "similar results", without numbers.',),
)
