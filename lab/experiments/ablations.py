"""Losses of other ways to select: the paper's ablations (Tables 2 to 5, Appendix A.5), and several masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.engine.losses import (
    ALIKE,
    Less,
    LossCells,
    Variant,
    by_positions,
    even_heads,
    loss_table,
    paper_difference,
    rows_by_size,
    switch_table,
)
from lab.engine.records import Claim
from lab.experiments.language import DISAGREES
from lab.runs import SHORT
from lab.scales import SELECTIVE, STANDARD, Scale

_FAR = 0.1  # nats: more than two trainings of selective attention lie apart

SELF_IMPACT = switch_table(
    "self-impact",
    "Table 3",
    "selection that affects a token's own attention beside selection that does not",
    "selection_shift",
    "no shift",
    {  # after 65,536 steps, means of 3 runs
        10: (2.927, 2.923), 12: (2.832, 2.831), 14: (2.753, 2.750), 16: (2.692, 2.691), 18: (2.641, 2.639),
        26: (2.516, 2.511),
    },
    "The shift helps ({row}).",
    steps=SHORT,
)  # fmt: skip
BOS_CONSTRAINT = switch_table(
    "bos-constraint",
    "Table 4",
    "selection that may mask <BOS> beside selection that may not",
    "selection_protect_first",
    "<BOS> can be masked",
    {
        12: (2.6409, 2.6373), 14: (2.5486, 2.5483), 16: (2.4750, 2.4741), 18: (2.4153, 2.4156), 20: (2.3674, 2.3673),
        24: (2.2909, 2.2865),
    },
    f"Protecting <BOS> costs less than {ALIKE} nats, if anything ({{row}}).",
    by=-ALIKE,
    notes=(DISAGREES,),
)  # fmt: skip
SELF_MASKING = switch_table(
    "self-masking",
    "Table 5",
    "tokens that may mask themselves beside tokens that may not",
    "selection_protect_self",
    "may mask itself",
    {12: (2.7348, 2.7251), 14: (2.6510, 2.6423), 18: (2.5261, 2.5209)},
    "The loss is larger where a token may mask itself ({row}).",
    notes=(DISAGREES,),
)

# --- Table 2: a bilinear form of its own

_TABLE_2 = {
    (STANDARD, 8): 2.96, (STANDARD, 12): 2.68, ("separate form", 8): 2.91, ("separate form", 12): 2.63,
    (SELECTIVE, 8): 2.90, (SELECTIVE, 12): 2.63,
}  # fmt: skip
_FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    STANDARD: (STANDARD, {}),
    "separate form": (SELECTIVE, {"selection_source": "separate"}),
    SELECTIVE: (SELECTIVE, {}),
}


def _forms(scale: Scale) -> list[Variant]:
    return [
        Variant(f"d={d}{added}", name, scale.run(kind, d=d, positions=positions, **settings), _TABLE_2.get((name, d)))
        for positions, added in by_positions(scale).items()
        for d in ((8, 12) if scale.name == "paper" else (scale.d,))
        for name, (kind, settings) in _FORMS.items()
    ]


def _a_head_will_do(scale: Scale) -> list[Less]:
    paper = {d: (_TABLE_2["separate form", d], _TABLE_2[SELECTIVE, d]) for d in (8, 12)}
    return [
        Less(
            f"A head selects as well as a form of its own, within {ALIKE} nats, or better ({row}).",
            (row, SELECTIVE),
            (row, "separate form"),
            paper_difference(paper, d),
            by=-ALIKE,
        )
        for row, d in rows_by_size(scale, paper).items()
    ]


BILINEAR = loss_table(
    "bilinear",
    "Table 2",
    "a separate bilinear form for the selection beside a head's own logits",
    variants=_forms,
    claims=_a_head_will_do,
)

# --- Appendix A.5: without relu, which the paper says does not converge


def _negative(scale: Scale) -> list[Variant]:
    return [
        Variant(added.strip(", ") or scale.name, name, scale.run(kind, positions=positions, **settings))
        for positions, added in by_positions(scale).items()
        for name, kind, settings in (
            (STANDARD, STANDARD, {}),
            ("without relu", SELECTIVE, {"selection_relu": False}),
            (SELECTIVE, SELECTIVE, {}),
        )
    ]


def _does_not_converge(scale: Scale, losses: LossCells) -> Sequence[Claim]:
    """It diverges, or ends far above the selective model."""
    claims = []
    for added in by_positions(scale).values():
        row = added.strip(", ") or scale.name
        pairs = zip(losses.at(row, "without relu"), losses.at(row, SELECTIVE), strict=True)
        fails = tuple(None if usual is None else float(own is None or own > usual + _FAR) for own, usual in pairs)
        text = f"Without relu training does not converge{added}."
        what = f"1 of a run that diverged or ended {_FAR} nats above the selective model, else 0"
        claims.append(Claim(text, fails, what, than=0.5, digits=0))
    return claims


NEGATIVE_SELECTION = loss_table(
    "negative-selection",
    "Appendix A.5",
    "selection that can be negative",
    variants=_negative,
    more=_does_not_converge,  # no claim compares two losses: one of the runs may have none
)

# --- Open: several selection masks


def _counts(scale: Scale) -> list[int]:
    return list(dict.fromkeys([1, 2, even_heads(scale)]))


def _masks(scale: Scale) -> list[Variant]:
    """One head selects for all; or each equal group of heads follows one of its own."""
    heads = even_heads(scale)
    made = []
    for positions, added in by_positions(scale).items():
        standard = scale.run(STANDARD, positions=positions, num_attention_heads=heads)
        made.append(Variant(STANDARD, f"loss{added}", standard))
        for count in _counts(scale):
            selecting = 0 if count == 1 else [group * heads // count for group in range(count)]
            run = scale.run(SELECTIVE, positions=positions, num_attention_heads=heads, selection_head=selecting)
            made.append(Variant(f"masks: {count}", f"loss{added}", run))
    return made


MASKS = loss_table(
    "masks",
    "open: several selection masks",
    "one selection mask beside several",
    variants=_masks,
    claims=lambda scale: [
        Less(
            f"{count} masks are better than one{added}.",
            (f"masks: {count}", f"loss{added}"),
            ("masks: 1", f"loss{added}"),
        )
        for added in by_positions(scale).values()
        for count in _counts(scale)
        if count > 1
    ],
)

EXPERIMENTS = (SELF_IMPACT, BOS_CONSTRAINT, SELF_MASKING, BILINEAR, NEGATIVE_SELECTION, MASKS)
