"""Figure 4: how many more heads standard attention needs to be as good as selective attention."""

from __future__ import annotations

from lab.engine.grids import Less, Variant, by_positions, loss_table
from lab.runs.scales import Scale

_COMPARABLE = 0.02  # nats: with twice as many heads standard attention is about as good
_SIZES = {"smoke": (2,), "laptop": (3,), "paper": (8, 12, 16)}


def _heads(d: int) -> list[int]:
    """d heads, a quarter more, half as many more, twice as many."""
    return sorted({d, d + d // 4, d + d // 2, 2 * d})


def variants(scale: Scale) -> list[Variant]:
    """Standard models with more and more heads, and a selective one with d of them."""
    found = []
    for positions, added in by_positions(scale).items():
        for d in _SIZES[scale.name]:
            run = scale.run("selective", d=d, positions=positions)
            found.append(Variant(f"{d} heads, d={d}{added}", "selective", run, x=d))
            for heads in _heads(d):
                run = scale.run("standard", d=d, positions=positions, num_attention_heads=heads)
                found.append(Variant(f"{heads} heads, d={d}{added}", "standard", run, x=heads))
    return found


def claims(scale: Scale) -> list[Less]:
    """Better than half as many heads more, and about as good as twice as many."""
    found = []
    for added in by_positions(scale).values():
        for d in _SIZES[scale.name]:
            own = (f"{d} heads, d={d}{added}", "selective")
            for heads in _heads(d):
                better = f"is within {_COMPARABLE} nats of" if heads == 2 * d else "is better than"
                text = f"Selective attention with {d} heads {better} standard attention with {heads}{added}."
                by = -_COMPARABLE if heads == 2 * d else 0.0
                found.append(Less(text, own, (f"{heads} heads, d={d}{added}", "standard"), by=by))
    return found


EXPERIMENT = loss_table(
    name="extra-heads",
    paper="Figure 4",
    sentence="standard attention with more heads beside selective attention",
    variants=variants,
    claims=claims,
    notes=("The paper has it as a figure: standard attention becomes comparable with about twice as many heads.",),
    axis="attention heads",
)
