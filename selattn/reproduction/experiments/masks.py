"""What the paper did not test: more than one selection mask."""

from __future__ import annotations

from selattn.reproduction.grids import Less, Variant, by_positions, loss_table
from selattn.reproduction.scales import Scale


def _counts(scale: Scale) -> list[int]:
    d = {"smoke": 2, "laptop": 4, "paper": 12}[scale.name]
    return [count for count in (1, 2, d) if count <= d]


def variants(scale: Scale) -> list[Variant]:
    """One head selects for all; or each equal group of heads follows one of its own."""
    d = _counts(scale)[-1]
    found = []
    for positions, added in by_positions(scale).items():
        found.append(Variant("standard", f"loss{added}", scale.run("standard", d=d, positions=positions)))
        for count in dict.fromkeys(_counts(scale)):
            heads = 0 if count == 1 else [group * d // count for group in range(count)]
            run = scale.run("selective", d=d, positions=positions, selection_head=heads)
            found.append(Variant(f"masks: {count}", f"loss{added}", run))
    return found


def claims(scale: Scale) -> list[Less]:
    """More masks are better."""
    return [
        Less(
            f"{count} masks are better than one{added}.",
            (f"masks: {count}", f"loss{added}"),
            ("masks: 1", f"loss{added}"),
        )
        for added in by_positions(scale).values()
        for count in dict.fromkeys(_counts(scale))
        if count > 1
    ]


EXPERIMENT = loss_table(
    name="masks",
    paper="open: several selection masks",
    sentence="one selection mask beside several",
    variants=variants,
    claims=claims,
)
