"""Section 5, learning rates: standard and selective attention at other learning rates."""

from __future__ import annotations

from lab.engine.grids import Less, Variant, loss_table, pairs, smaller
from lab.runs.scales import Scale


def variants(scale: Scale) -> list[Variant]:
    """Both kinds, as usual and so."""
    return pairs({f"learning rate {lr:g}": {"lr": lr} for lr in (scale.lr / 3, scale.lr, scale.lr * 2)}, scale)


def claims(scale: Scale) -> list[Less]:
    """The same result in each."""
    return smaller(
        list(dict.fromkeys(each.row for each in variants(scale))), "Selective attention has the smaller loss at {row}."
    )


EXPERIMENT = loss_table(
    name="learning-rate",
    paper="Section 5, learning rates",
    sentence="standard and selective attention at other learning rates",
    variants=variants,
    claims=claims,
    notes=('The paper, of this variant: "similar results", without numbers.',),
)
