"""Section 5, other variants: standard and selective attention in GPT-2's exact architecture."""

from __future__ import annotations

from lab.engine.grids import Less, Variant, loss_table, pairs, smaller
from lab.runs.scales import Scale

_GPT2 = {
    "norm": "layernorm",
    "norm_eps": 1e-5,
    "mlp": "gelu",
    "bias": True,
    "tie_word_embeddings": True,
    "qk_norm": False,
    "positions": "learned",
}


def variants(scale: Scale) -> list[Variant]:
    """Both kinds, as usual and so."""
    return pairs({"GPT-2": dict(_GPT2)}, scale)


def claims(scale: Scale) -> list[Less]:
    """The same result in each."""
    return smaller(
        list(dict.fromkeys(each.row for each in variants(scale))),
        "Selective attention has the smaller loss in the architecture of {row}, too.",
    )


EXPERIMENT = loss_table(
    name="gpt2",
    paper="Section 5, other variants",
    sentence="standard and selective attention in GPT-2's exact architecture",
    variants=variants,
    claims=claims,
    notes=('The paper, of this variant: "similar results", without numbers.',),
)
