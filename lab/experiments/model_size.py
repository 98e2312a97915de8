"""Figure 3, right: loss against model size, standard and selective."""

from __future__ import annotations

from lab.engine.grids import Less, Variant, by_positions, loss_table, smaller
from lab.runs.scales import Scale

# After 524,288 steps, where a table of the paper has it (Tables 2, 4 and 6).
PAPER = {
    ("standard", 8): 2.96, ("selective", 8): 2.90, ("standard", 12): 2.6815, ("selective", 12): 2.6372,
    ("selective", 14): 2.5483, ("selective", 16): 2.4741, ("selective", 18): 2.4156, ("selective", 20): 2.3673,
    ("selective", 24): 2.2865,
}  # fmt: skip
# Which Table 5 contradicts.
DISAGREES = (
    "The paper's tables disagree: selective attention after 524,288 steps has 2.6373 (d=12), 2.5483 (14) and 2.4156 "
    "(18) in Table 4, and 2.7251, 2.6423 and 2.5209 in Table 5."
)


def variants(scale: Scale) -> list[Variant]:
    """Both kinds at every size."""
    return [
        Variant(f"d={d}{added}", kind, scale.run(kind, d=d, positions=positions), PAPER.get((kind, d)), x=d)
        for positions, added in by_positions(scale).items()
        for d in sorted(scale.sizes)
        for kind in ("standard", "selective")
    ]


def claims(scale: Scale) -> list[Less]:
    """Better at every size."""
    rows = dict.fromkeys(each.row for each in variants(scale))
    paper = {row: 0.06 for row in rows if row.startswith("d=8")} | {
        row: 0.044 for row in rows if row.startswith("d=12")
    }
    return smaller(list(rows), "At {row}: selective attention has the smaller loss.", paper)


EXPERIMENT = loss_table(
    name="model-size",
    paper="Figure 3, right",
    sentence="loss of standard and selective attention against model size",
    variants=variants,
    claims=claims,
    notes=(DISAGREES,),
    axis="d: layers, heads, and d_model / 64",
)
