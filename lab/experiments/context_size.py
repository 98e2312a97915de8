"""Figure 3, left: loss against context size, standard and selective."""

from __future__ import annotations

from collections.abc import Sequence

from lab.engine.frame import Claim
from lab.engine.grids import Less, Losses, Variant, by_positions, loss_table, smaller
from lab.engine.verdicts import differences
from lab.runs.scales import Scale


def variants(scale: Scale) -> list[Variant]:
    """Both kinds at every context size; the paper's have 128 rows in a batch at each."""
    return [
        Variant(
            f"{context} tokens{added}",
            kind,
            scale.run(kind, context=context, positions=positions, batch=128 if scale.name == "paper" else None),
            x=context,
        )
        for positions, added in by_positions(scale).items()
        for context in sorted(scale.contexts)
        for kind in ("standard", "selective")
    ]


def claims(scale: Scale) -> list[Less]:
    """Better at every context size."""
    rows = dict.fromkeys(each.row for each in variants(scale))
    return smaller(list(rows), "At {row}: selective attention has the smaller loss.")


def more(scale: Scale, losses: Losses) -> Sequence[Claim]:
    """And the more so, the longer the context."""
    low, high = min(scale.contexts), max(scale.contexts)
    return [
        Claim(
            f"The gain grows with the context{added}.",
            differences(losses.gap(f"{high} tokens{added}"), losses.gap(f"{low} tokens{added}")),
            f"gap at {high} tokens less that at {low}, nats",
        )
        for added in by_positions(scale).values()
    ]


EXPERIMENT = loss_table(
    name="context-size",
    paper="Figure 3, left",
    sentence="loss of standard and selective attention against context size",
    variants=variants,
    claims=claims,
    more=more,
    notes=(
        "The paper shows this as a figure without numbers. Steps have the same number of tokens at every size here.",
    ),
    axis="context size, tokens",
)
