"""Section 5: standard and selective attention on WikiText."""

from __future__ import annotations

from lab.engine.grids import Less, Variant, loss_table, pairs, smaller
from lab.runs.scales import Scale


def variants(scale: Scale) -> list[Variant]:
    """Both kinds on that text."""
    return pairs({"WikiText": {}}, scale.on("wikitext"))


def claims(scale: Scale) -> list[Less]:
    """Selective attention is better there, too."""
    return smaller(["WikiText"], "Selective attention has the smaller loss on {row}.")


EXPERIMENT = loss_table(
    name="wikitext",
    paper="Section 5, WikiText",
    sentence="standard and selective attention on WikiText",
    variants=variants,
    claims=claims,
    notes=(
        'The paper, of this text: "similar results", without numbers. It comes from the hub, or from a file that '
        "--text wikitext=FILE names; the smoke test reads Python's documentation instead.",
    ),
)
