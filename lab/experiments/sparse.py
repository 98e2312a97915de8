"""Figure 7, the trained rivals: strided and fixed sparse attention."""

from __future__ import annotations

from lab.engine.grids import Less, Variant, by_positions, loss_table
from lab.runs.scales import Scale


def _models(scale: Scale) -> dict[str, str]:
    stride = 32 if scale.context >= 512 else 8
    return {
        f"strided {stride}": f"strided:{stride}",
        f"fixed {stride}": f"fixed:{stride}:{stride // 4}",
        "standard": "standard",
        "selective": "selective",
    }


def variants(scale: Scale) -> list[Variant]:
    """The two patterns of Child et al., standard and selective."""
    return [
        Variant(name, f"loss{added}", scale.run({"attention": [kind]}, positions=positions))
        for positions, added in by_positions(scale).items()
        for name, kind in _models(scale).items()
    ]


def claims(scale: Scale) -> list[Less]:
    """Selective attention is better than each."""
    return [
        Less(
            f"Selective attention is better than {name}{added}.", ("selective", f"loss{added}"), (name, f"loss{added}")
        )
        for added in by_positions(scale).values()
        for name in _models(scale)
        if name != "selective"
    ]


EXPERIMENT = loss_table(
    name="sparse",
    paper="Figure 7, sparse attention",
    sentence="strided and fixed sparse attention beside standard and selective attention",
    variants=variants,
    claims=claims,
    notes=(
        "The paper does not give its strides; ours are near the root of the context, as Child et al. advise. A strided "
        "layer reads few tokens, but has to hold all of them.",
    ),
)
