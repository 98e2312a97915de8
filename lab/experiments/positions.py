"""The control that matters most: learned positions, as in the paper, beside rotary ones."""

from __future__ import annotations

from collections.abc import Sequence

from lab.engine.frame import Claim
from lab.engine.grids import Less, Losses, Variant, loss_table, pairs, smaller
from lab.engine.verdicts import differences
from lab.runs.scales import Scale

_ROWS = {"learned positions": {"positions": "learned"}, "rotary positions": {"positions": "rotary"}}


def variants(scale: Scale) -> list[Variant]:
    """Both kinds with both."""
    return pairs({row: dict(settings) for row, settings in _ROWS.items()}, scale)


def claims(scale: Scale) -> list[Less]:
    """Selective attention is better with both."""
    return smaller(list(_ROWS), "Selective attention has the smaller loss with {row}.", {"learned positions": 0.0443})


def more(scale: Scale, losses: Losses) -> Sequence[Claim]:
    """How much of the gap is recency, which rotary positions give anyway."""
    learned, rotary = (losses.gap(row) for row in _ROWS)
    what = "gap with learned positions less that with rotary ones, nats"
    return (
        Claim("Part of the gap is recency, which rotary positions give anyway.", differences(learned, rotary), what),
    )


EXPERIMENT = loss_table(
    name="positions",
    paper="open: rotary positions",
    sentence="standard and selective attention with learned and with rotary positions",
    variants=variants,
    claims=claims,
    more=more,
)
