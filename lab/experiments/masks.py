"""What the paper did not test: more than one selection mask."""

from __future__ import annotations

from lab.engine.grids import Less, Variant, by_positions, even_heads, loss_table
from lab.runs.scales import Scale


def _counts(scale: Scale) -> list[int]:
    return [1, 2, even_heads(scale)]


def variants(scale: Scale) -> list[Variant]:
    """One head selects for all; or each equal group of heads follows one of its own."""
    heads = even_heads(scale)
    found = []
    for positions, added in by_positions(scale).items():
        standard = scale.run("standard", positions=positions, num_attention_heads=heads)
        found.append(Variant("standard", f"loss{added}", standard))
        for count in dict.fromkeys(_counts(scale)):
            selecting = 0 if count == 1 else [group * heads // count for group in range(count)]
            run = scale.run("selective", positions=positions, num_attention_heads=heads, selection_head=selecting)
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
