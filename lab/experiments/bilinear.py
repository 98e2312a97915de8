"""Table 2: a bilinear form of its own for the selection, instead of a head's logits."""

from __future__ import annotations

from typing import Any

from lab.engine.grids import ALIKE, Less, Variant, by_positions, loss_table, paper_difference, rows
from lab.runs.scales import Scale

_PAPER = {
    ("standard", 8): 2.96, ("standard", 12): 2.68, ("separate form", 8): 2.91, ("separate form", 12): 2.63,
    ("selective", 8): 2.90, ("selective", 12): 2.63,
}  # fmt: skip
_MODELS: dict[str, dict[str, Any]] = {
    "standard": {},
    "separate form": {"selection_source": "separate"},
    "selective": {},
}


def _sizes(scale: Scale) -> tuple[int, ...]:
    return (8, 12) if scale.name == "paper" else (scale.d,)


def variants(scale: Scale) -> list[Variant]:
    """The three, at every size."""
    return [
        Variant(
            f"d={d}{added}",
            name,
            scale.run("standard" if name == "standard" else "selective", d=d, positions=positions, **settings),
            _PAPER.get((name, d)),
        )
        for positions, added in by_positions(scale).items()
        for d in _sizes(scale)
        for name, settings in _MODELS.items()
    ]


def claims(scale: Scale) -> list[Less]:
    """A head is as good as a form of its own, or better."""
    paper = {d: (_PAPER["separate form", d], _PAPER["selective", d]) for d in (8, 12)}
    return [
        Less(
            f"A head selects as well as a form of its own, within {ALIKE} nats, or better ({row}).",
            (row, "selective"),
            (row, "separate form"),
            paper_difference(paper, d),
            by=-ALIKE,
        )
        for row, d in rows(scale, paper).items()
    ]


EXPERIMENT = loss_table(
    name="bilinear",
    paper="Table 2",
    sentence="a separate bilinear form for the selection beside a head's own logits",
    variants=variants,
    claims=claims,
)
