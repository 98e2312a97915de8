"""Section 5: a vocabulary of 32K tokens."""

from __future__ import annotations

import dataclasses

from lab.engine.grids import Less, Variant, loss_table, pairs, smaller
from lab.runs.scales import Scale

_LARGER = {"smoke": 700, "laptop": 8_192, "paper": 32_000}


def variants(scale: Scale) -> list[Variant]:
    """Both kinds with a larger vocabulary; losses of different vocabularies cannot be compared."""
    size = _LARGER[scale.name]
    larger = dataclasses.replace(scale, data=dataclasses.replace(scale.data, vocabulary=size))
    return pairs({f"{size:,} tokens": {}}, larger)


def claims(scale: Scale) -> list[Less]:
    """Selective attention is better there, too."""
    rows = list(dict.fromkeys(each.row for each in variants(scale)))
    return smaller(rows, "Selective attention has the smaller loss with a vocabulary of {row}.")


EXPERIMENT = loss_table(
    name="vocabulary",
    paper="Section 5, 32K vocabulary",
    sentence="standard and selective attention with a larger vocabulary",
    variants=variants,
    claims=claims,
    notes=('The paper, of 32K tokens: "similar results". A laptop has 8,192.',),
)
