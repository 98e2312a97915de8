"""What the GPU kernels should take on an A100 and an H100, by counting: `python benchmarks/gpu_cost.py`.

Products and bytes of every kernel, from the cost model (`selattn/ops/backends/triton/cost.py`, whose counts are held
against counters in Triton's interpreter), for several lengths and shares of living pairs, beside dense flash attention
with the same tiles. Nothing is measured: seconds are predictions, and ratios say more than seconds.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from selattn.ops.backends.triton import configs, cost
from selattn.ops.backends.triton.cost import Card, Cost, Costs, Shape, seconds, step_cost
from selattn.utils import records

CARDS: tuple[tuple[Card, configs.Card], ...] = ((cost.A100, configs.A100), (cost.H100, configs.H100))


@dataclass(frozen=True)
class Row:
    """A call on a card.

    Attributes:
        card: its name.
        n: tokens.
        heads: of queries, and of keys and values.
        dim: features of a head.
        living: the share of pairs that are alive.
        forward_ms: what our forward pass should take.
        both_ms: that and the backward pass.
        forward_ratio: times that of dense flash attention.
        both_ratio: the same for both passes.
        products_ratio: operations of the matrix units in both passes, times flash attention's.
        bytes_ratio: bytes that programs ask for in both passes, times flash attention's.
        stored_mb: F at block starts, which the backward pass reads again.
    """

    card: str
    n: int
    heads: int
    dim: int
    living: float
    forward_ms: float
    both_ms: float
    forward_ratio: float
    both_ratio: float
    products_ratio: float
    bytes_ratio: float
    stored_mb: float


@dataclass(frozen=True)
class Step:
    """A step of decoding of one layer.

    Attributes:
        card: its name.
        batch: rows.
        kept: tokens in the slots.
        us: microseconds that it should take.
        full_us: the same with `context` tokens kept.
        context: tokens that nothing has left of.
    """

    card: str
    batch: int
    kept: int
    us: float
    full_us: float
    context: int


@dataclass(frozen=True)
class Record:
    """What is written: attention and decoding, and the share of a card's products that is taken to be reached."""

    reached: float
    rows: tuple[Row, ...]
    steps: tuple[Step, ...]


def row(card: Card, config: configs.Config, shape: Shape, living: float) -> Row:
    """One call of attention with bf16 inputs."""
    ours, dense = Costs(shape, config, living), Costs(shape, config)
    forward, both = ours.forward(), ours.forward() + ours.backward()
    flash, flash_both = dense.flash_forward(), dense.flash_forward() + dense.flash_backward()

    def total(costs: list[Cost], what: str) -> int:
        return sum(getattr(cost, what) for cost in costs)

    return Row(
        card=card.name,
        n=shape.tokens,
        heads=shape.heads,
        dim=shape.size,
        living=living,
        forward_ms=1e3 * seconds(forward, card),
        both_ms=1e3 * seconds(both, card),
        forward_ratio=seconds(forward, card) / seconds(flash, card),
        both_ratio=seconds(both, card) / seconds(flash_both, card),
        products_ratio=total(both, "products") / total(flash_both, "products"),
        bytes_ratio=total(both, "bytes") / total(flash_both, "bytes"),
        stored_mb=4 * shape.batch * ours.blocks * shape.tokens / 2**20,
    )


def step(card: Card, batch: int, kept: int, context: int) -> Step:
    """One step with 32 query heads of 128 and 8 of keys and values."""
    shape = Shape(batch=batch, heads=32, groups=8, size=128)
    times = [1e6 * seconds([step_cost(shape, count)], card) for count in (kept, context)]
    return Step(card.name, batch, kept, *times, context)


def main() -> None:
    """Count, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--heads", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--dim", type=int, nargs="+", default=[64, 128], choices=(64, 128))
    parser.add_argument("--living", type=float, nargs="+", default=[1.0, 0.5, 0.2, 0.1])
    parser.add_argument("--out", type=Path, default=Path("results/gpu_cost.json"))
    args = parser.parse_args()
    records.check_output(args.out)
    rows = tuple(
        row(card, ours.half_64 if dim == 64 else ours.half_128, Shape(1, heads, heads, n, dim), living)
        for card, ours in CARDS
        for dim in args.dim
        for heads in args.heads
        for n in args.n
        for living in args.living
    )
    steps = tuple(step(card, batch, 512, 8192) for card, _ in CARDS for batch in (1, 16, 64))
    table = Table("card", "heads", "N", "living", "forward", "x flash", "both", "x flash", title="predicted, in ms")
    for x in rows:
        table.add_row(
            *(x.card, f"{x.heads} x {x.dim}", f"{x.n:,}", f"{x.living:.0%}"),
            *(f"{x.forward_ms:.2f}", f"{x.forward_ratio:.2f}", f"{x.both_ms:.2f}", f"{x.both_ratio:.2f}"),
        )
    Console().print(table)
    print(records.write_record(args.out, Record(cost.REACHED, rows, steps), seed=None))


if __name__ == "__main__":
    main()
