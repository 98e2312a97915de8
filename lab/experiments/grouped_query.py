"""What the paper did not test: multi-query and grouped-query attention."""

from __future__ import annotations

from typing import Any

from lab.engine.grids import Less, Variant, by_positions, even_heads, loss_table, pairs, smaller
from lab.runs.scales import Scale


def variants(scale: Scale) -> list[Variant]:
    """Both kinds with as many key-value heads as query heads, half of them, and one."""
    heads = even_heads(scale)
    shared: dict[str, int] = {"multi-head": heads, "grouped-query": max(heads // 2, 1), "multi-query": 1}
    shared = {name: kv for name, kv in shared.items() if name != "grouped-query" or kv > 1}
    rows: dict[str, dict[str, Any]] = {
        f"{name}, {kv} of {heads} key-value heads{added}": {
            "num_attention_heads": heads,
            "num_key_value_heads": kv if kv < heads else None,
            "positions": positions,
        }
        for positions, added in by_positions(scale).items()
        for name, kv in shared.items()
    }
    return pairs(rows, scale)


def claims(scale: Scale) -> list[Less]:
    """Selective attention is better in each."""
    rows = list(dict.fromkeys(each.row for each in variants(scale)))
    return smaller(rows, "Selective attention has the smaller loss with {row}.")


EXPERIMENT = loss_table(
    name="grouped-query",
    paper="open: multi-query and grouped-query attention",
    sentence="standard and selective attention with fewer key-value heads",
    variants=variants,
    claims=claims,
)
