"""Table 3: a token's selection counts for later tokens only, or for its own row, too."""

from __future__ import annotations

from lab.engine.grids import Less, Variant, by_positions, loss_table, paper_difference, rows
from lab.runs.scales import Scale

_PAPER = {  # d: without the shift, with it; after 65,536 steps, means of 3 runs
    10: (2.927, 2.923), 12: (2.832, 2.831), 14: (2.753, 2.750), 16: (2.692, 2.691), 18: (2.641, 2.639),
    26: (2.516, 2.511),
}  # fmt: skip


def variants(scale: Scale) -> list[Variant]:
    """With and without the shift."""
    paper = scale.name == "paper"
    found = []
    for positions, added in by_positions(scale).items():
        for d in _PAPER if paper else (scale.d,):
            values = _PAPER[d] if paper else (None, None)
            for name, shift, value in zip(("no shift", "selective"), (False, True), values, strict=True):
                steps = 65_536 if paper else None
                run = scale.run("selective", d=d, positions=positions, steps=steps, selection_shift=shift)
                found.append(Variant(f"d={d}{added}", name, run, value))
    return found


def claims(scale: Scale) -> list[Less]:
    """The shift helps a little."""
    return [
        Less(f"The shift helps ({row}).", (row, "selective"), (row, "no shift"), paper_difference(_PAPER, d))
        for row, d in rows(scale, _PAPER).items()
    ]


EXPERIMENT = loss_table(
    name="self-impact",
    paper="Table 3",
    sentence="selection that affects a token's own attention beside selection that does not",
    variants=variants,
    claims=claims,
)
