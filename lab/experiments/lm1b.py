"""Section 5: standard and selective attention on lm1b."""

from __future__ import annotations

from lab.engine.grids import Less, Variant, loss_table, pairs, smaller
from lab.runs.scales import Scale


def variants(scale: Scale) -> list[Variant]:
    """Both kinds on that text."""
    return pairs({"lm1b": {}}, scale.on("lm1b"))


def claims(scale: Scale) -> list[Less]:
    """Selective attention is better there, too."""
    return smaller(["lm1b"], "Selective attention has the smaller loss on {row}.")


EXPERIMENT = loss_table(
    name="lm1b",
    paper="Section 5, lm1b",
    sentence="standard and selective attention on lm1b",
    variants=variants,
    claims=claims,
    notes=(
        'The paper, of this text: "similar results", without numbers. It comes from the hub, or from a file that '
        "--text lm1b=FILE names; the smoke test reads Python's documentation instead.",
    ),
)
