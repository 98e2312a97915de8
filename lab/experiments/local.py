"""Table 6: local and local-global attention beside standard and selective attention."""

from __future__ import annotations

from typing import Any

from lab.engine.grids import Less, Variant, by_positions, loss_table
from lab.runs.scales import Scale

_PAPER = {
    "all-local 32": 2.7860, "all-local 64": 2.7386, "all-local 128": 2.7154, "all-local 256": 2.6981,
    "all-local 384": 2.6873, "all-local 448": 2.6849, "all-local 480": 2.6834,
    "local-global 32": 2.7046, "local-global 64": 2.7105, "local-global 128": 2.7154, "local-global 256": 2.6993,
    "local-global 384": 2.6895, "local-global 448": 2.6870, "local-global 480": 2.6861,
    "standard": 2.6815, "selective": 2.6372,
}  # fmt: skip

SAME = (
    "In Table 6 all-local 128 and local-global 128 are both 2.7154, and local-global gets worse from 32 to 128: one of "
    "these numbers is probably a slip."
)


def _models(scale: Scale) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for window in scale.windows:
        found[f"all-local {window}"] = {"attention": [f"local:{window}"]}
    for window in scale.windows:
        local = 2 if scale.name == "laptop" else 3  # of its three layers, or of every four
        found[f"local-global {window}"] = {"attention": [f"local:{window}"] * local + ["standard"]}
    return found | {kind: {"attention": [kind]} for kind in ("standard", "selective")}


def variants(scale: Scale) -> list[Variant]:
    """Each pattern, with enough layers for the local ones and a global one."""
    layers = {"num_hidden_layers": 4} if scale.name == "smoke" else {}
    return [
        Variant(name, f"loss{added}", scale.run(model, positions=positions, **layers), _PAPER.get(name))
        for positions, added in by_positions(scale).items()
        for name, model in _models(scale).items()
    ]


def claims(scale: Scale) -> list[Less]:
    """All of them are worse than standard attention, and that is worse than selective attention."""
    found = []
    for added in by_positions(scale).values():
        column = f"loss{added}"
        for name in _models(scale):
            if name == "selective":
                found.append(
                    Less(f"Selective is better than standard{added}.", (name, column), ("standard", column), 0.0443)
                )
            elif name != "standard":
                paper = _PAPER[name] - _PAPER["standard"] if name in _PAPER else None
                found.append(
                    Less(f"{name} is worse than standard{added}.", ("standard", column), (name, column), paper)
                )
    return found


EXPERIMENT = loss_table(
    name="local",
    paper="Table 6",
    sentence="local and local-global attention beside standard and selective attention",
    variants=variants,
    claims=claims,
    notes=(
        SAME,
        "Local-global has three local layers before each global one; two at the laptop scale, with three layers.",
    ),
)
