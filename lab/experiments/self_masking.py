"""Table 5: tokens that may mask themselves."""

from __future__ import annotations

from lab.engine.grids import Less, Variant, by_positions, loss_table, paper_difference, rows
from lab.experiments.model_size import DISAGREES
from lab.runs.scales import Scale

_PAPER = {12: (2.7348, 2.7251), 14: (2.6510, 2.6423), 18: (2.5261, 2.5209)}  # d: without the constraint, with it


def variants(scale: Scale) -> list[Variant]:
    """With and without the constraint."""
    found = []
    for positions, added in by_positions(scale).items():
        for d in _PAPER if scale.name == "paper" else (scale.d,):
            values = _PAPER.get(d, (None, None))
            for name, protect, value in zip(("may mask itself", "selective"), (False, True), values, strict=True):
                run = scale.run("selective", d=d, positions=positions, selection_protect_self=protect)
                found.append(Variant(f"d={d}{added}", name, run, value))
    return found


def claims(scale: Scale) -> list[Less]:
    """The loss is larger without the constraint."""
    text = "The loss is larger where a token may mask itself ({row})."
    return [
        Less(text.format(row=row), (row, "selective"), (row, "may mask itself"), paper_difference(_PAPER, d))
        for row, d in rows(scale, _PAPER).items()
    ]


EXPERIMENT = loss_table(
    name="self-masking",
    paper="Table 5",
    sentence="tokens that may mask themselves beside tokens that may not",
    variants=variants,
    claims=claims,
    notes=(DISAGREES,),
)
