"""Table 4: selection that may mask <BOS>."""

from __future__ import annotations

from lab.engine.grids import ALIKE, Less, Variant, by_positions, loss_table, paper_difference, rows
from lab.experiments.model_size import DISAGREES
from lab.runs.scales import Scale

_PAPER = {  # d: without the constraint, with it
    12: (2.6409, 2.6373), 14: (2.5486, 2.5483), 16: (2.4750, 2.4741), 18: (2.4153, 2.4156), 20: (2.3674, 2.3673),
    24: (2.2909, 2.2865),
}  # fmt: skip


def variants(scale: Scale) -> list[Variant]:
    """With and without the constraint."""
    found = []
    for positions, added in by_positions(scale).items():
        for d in _PAPER if scale.name == "paper" else (scale.d,):
            values = _PAPER.get(d, (None, None))
            for name, protect, value in zip(("<BOS> can be masked", "selective"), (False, True), values, strict=True):
                run = scale.run("selective", d=d, positions=positions, selection_protect_first=protect)
                found.append(Variant(f"d={d}{added}", name, run, value))
    return found


def claims(scale: Scale) -> list[Less]:
    """Neutral to slightly worse."""
    return [
        Less(
            f"Protecting <BOS> costs less than {ALIKE} nats, if anything ({row}).",
            (row, "selective"),
            (row, "<BOS> can be masked"),
            paper_difference(_PAPER, d),
            by=-ALIKE,
        )
        for row, d in rows(scale, _PAPER).items()
    ]


EXPERIMENT = loss_table(
    name="bos-constraint",
    paper="Table 4",
    sentence="selection that may mask <BOS> beside selection that may not",
    variants=variants,
    claims=claims,
    notes=(DISAGREES,),
)
