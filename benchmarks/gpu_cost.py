"""Predicted times of the GPU kernels on an A100 and an H100, by counting: `python benchmarks/gpu_cost.py`.

It counts the operations of the matrix units and the bytes that programs ask for, kernel by kernel, for several lengths
and shares of living pairs, and for dense flash attention with the same tiles. Nothing is measured: seconds are
predictions, and ratios say more than seconds.

    costs = Costs(Shape(batch=1, heads=16, tokens=8192, size=64), config, living=0.2)
    costs.forward()                    # a Cost for each kernel
    costs.flash_forward()              # dense flash attention with the same tiles, F = 0
    seconds(costs.forward(), A100)     # a prediction

Bytes are those that loads and stores name, most of which the second-level cache serves; tests compare both counts with
counters in Triton's interpreter. A call is taken as it is by default: one mask, whole sequences, M wanted, no padding.

`living` is the share of pairs that are alive, each key for that share of the rows after it; `dead` gives the block of
rows from which each key is dead instead.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from selattn.ops.backends.triton import configs
from selattn.ops.backends.triton.configs import Config
from selattn.ops.backends.triton.prepare import padded
from selattn.utils import records

NEVER = 2**31 - 1
AT_ONCE = 8  # blocks of rows between two looks at who is left, see kernels/select.py


class Shape(NamedTuple):
    """Of queries [batch, heads, tokens, size]; keys and values have `groups` heads; `width` bytes a number."""

    batch: int = 1
    heads: int = 16
    groups: int = 16
    tokens: int = 4096
    size: int = 64
    width: int = 2


class Cost(NamedTuple):
    """What one kernel computes and moves."""

    kernel: str
    products: int  # operations of the matrix units, a multiplication and an addition being two
    bytes: int


class Card(NamedTuple):
    """As its data sheet has it: operations a second in bf16 (dense), bytes a second of memory; and of the cache."""

    name: str
    products: float
    memory: float
    cache: float  # of the second level: an estimate, no data sheet has it


A100 = Card("A100", 312e12, 2.0e12, 5.0e12)
H100 = Card("H100", 989e12, 3.35e12, 7.0e12)
REACHED = 0.6  # of a card's products that a good attention kernel reaches; the same for ours and the rival


class Costs:
    """The costs of one call with one configuration."""

    def __init__(self, shape: Shape, config: Config, living: float = 1.0, dead: Tensor | None = None) -> None:
        self.shape, self.config = shape, config
        n, rows = shape.tokens, config.rows
        self.blocks = ceil(n / rows)
        born = torch.arange(n) // rows  # the block in which a key is seen first
        if dead is None:
            last = torch.arange(n) + living * (n - torch.arange(n))
            dead = torch.where(last >= n, NEVER, (last / rows).ceil().long())
        self.born, self.dead = born, torch.maximum(dead.long(), born)
        ends = self.dead.clamp(max=self.blocks)
        entered, left = (torch.bincount(x, minlength=self.blocks + 1)[: self.blocks].cumsum(0) for x in (born, ends))
        self.counts = entered - left  # [T] keys of each block of rows

    def forward(self) -> list[Cost]:
        """The forward pass with M."""
        x, c = self.shape, self.config
        row, n, t = x.size * x.width, x.tokens, self.blocks
        each = x.batch * x.heads
        select = self._select()
        lists = x.batch * (4 * int(self._seen().sum()) + 4 * int(self.counts.sum()) + 4 * t)
        return [
            Cost("bounds", 0, each * (3 * n * row + 8 * t)),
            select,
            Cost("list_columns", 0, lists),
            self._over_rows("attend", c.attend, products=2, inputs=1, outputs=row + 4, memory=4),
        ]

    def backward(self) -> list[Cost]:
        """The backward pass, with a gradient of M."""
        x, c = self.shape, self.config
        row, n = x.size * x.width, x.tokens
        each = x.batch * x.heads
        return [
            Cost("row_products", 0, each * (2 * n * row + 4 * n)),
            Cost("list_columns", 0, self.forward()[2].bytes),
            self._d_forgetting(),
            self._d_selecting_keys(),
            self._d_selecting_queries(),
            self._d_keys(),
            self._over_rows("d_queries", c.d_queries, products=3, inputs=2, outputs=row + 8, added=4 * x.size),
        ]

    def flash_forward(self) -> list[Cost]:
        """Dense flash attention: the same tiles, all keys, no F."""
        return [self._flash("flash", self.config.attend.keys, 2, 2)]

    def flash_backward(self) -> list[Cost]:
        """Its backward pass in the form without atomics: one kernel over keys, one over queries."""
        each = self.shape.batch * self.shape.heads
        row = self.shape.size * self.shape.width
        return [
            Cost("row_products", 0, each * (2 * self.shape.tokens * row + 4 * self.shape.tokens)),
            self._flash("flash d_keys", self.config.d_keys.keys, 4, 2),
            self._flash("flash d_queries", self.config.d_queries.keys, 3, 2),
        ]

    # The parts.

    @property
    def _row(self) -> int:
        return self.shape.size * self.shape.width

    def _pair(self, keys: int) -> int:
        """Operations of one product of a tile."""
        return 2 * self.config.rows * keys * padded(self.shape.size)

    def _seen(self) -> Tensor:
        """[T] keys that a block of rows may see, dead or alive."""
        return torch.arange(1, self.blocks + 1).mul(self.config.rows).clamp(max=self.shape.tokens)

    def _together(self, heads: int) -> int:
        """Heads of one program."""
        return next(n for n in range(min(heads, self.shape.heads), 0, -1) if self.shape.heads % n == 0)

    def _select(self) -> Cost:
        x, keys = self.shape, self.config.select.keys
        first = torch.arange(0, x.tokens, keys) // self.config.rows
        last = self._longest(keys)
        # It looks only now and then who is left.
        steps = (((last - first).clamp(min=1) + AT_ONCE - 1) // AT_ONCE * AT_ONCE).minimum(self.blocks - first)
        tiles = int(steps.sum())
        rows, lengths = tiles * self.config.rows, x.tokens * 8 * x.heads
        reads = rows * self._row + x.tokens * self._row + tiles * 8 * x.heads
        return Cost("select", x.batch * tiles * self._pair(keys), x.batch * (reads + lengths + tiles * keys * 4))

    def _longest(self, keys: int) -> Tensor:
        """[tiles] for neighbouring keys: the block in which the last one dies."""
        ends = self.dead.clamp(max=self.blocks)
        return torch.nn.functional.pad(ends, (0, -len(ends) % keys)).view(-1, keys).amax(-1)

    def _over_rows(
        self, name: str, tile: object, products: int, inputs: int, outputs: int, memory: int = 0, added: int = 0
    ) -> Cost:
        """A kernel that has a block of rows and goes over its keys: F once for the heads of a program."""
        x, keys, heads = self.shape, tile.keys, self._together(tile.heads)  # type: ignore[attr-defined]
        tiles = int(((self.counts + keys - 1) // keys).sum())
        shares = (x.heads // x.groups) % heads == 0
        programs = x.batch * x.heads // heads
        of_keys = self._row + 8 + (1 if shares else heads) * 2 * self._row  # selecting key, F, its number; key, value
        of_rows = self._row + heads * (inputs * self._row + outputs)
        total = programs * (int(self.counts.sum()) * of_keys + x.tokens * of_rows)
        total += x.batch * x.tokens * (memory + added)
        return Cost(name, programs * tiles * self._pair(keys) * (1 + products * heads), total)

    def _d_forgetting(self) -> Cost:
        x, keys = self.shape, self.config.d_forgetting.keys
        tiles = (self.counts + keys - 1) // keys
        count, pairs = int(tiles.sum()), int((self.counts * self._block_rows()).sum())
        rows = int((tiles * self._block_rows()).sum())
        reads = rows * (self._row + x.heads * (2 * self._row + 8) + 4)
        reads += int(self.counts.sum()) * (self._row + 8 + x.heads * 2 * self._row)
        products = count * self._pair(keys) * (1 + 2 * x.heads)
        return Cost("d_forgetting", x.batch * products, x.batch * (reads + 4 * pairs))

    def _block_rows(self) -> Tensor:
        """[T] rows of each block."""
        found = torch.full((self.blocks,), self.config.rows)
        found[-1] = self.shape.tokens - (self.blocks - 1) * self.config.rows
        return found

    def _over_keys(self, keys: int) -> tuple[int, int]:
        """Keys in the order in which they die: tiles that a kernel over keys visits, and rows in them."""
        order = self.dead.clamp(max=self.blocks).argsort(stable=True)
        size = -len(order) % keys
        ends = torch.nn.functional.pad(self.dead.clamp(max=self.blocks)[order], (0, size)).view(-1, keys).amax(-1)
        begins = torch.nn.functional.pad(self.born[order], (0, size), value=NEVER).view(-1, keys).amin(-1)
        rows = self._block_rows().cumsum(0)
        up_to = torch.nn.functional.pad(rows, (1, 0))
        return int((ends - begins).clamp(min=0).sum()), int((up_to[ends] - up_to[begins.minimum(ends)]).sum())

    def _d_selecting_keys(self) -> Cost:
        x, keys = self.shape, self.config.d_selecting.keys
        tiles, rows = self._over_keys(keys)
        pairs = int((self.counts * self._block_rows()).sum())
        sums = x.tokens * (8 + 8 * x.size) + x.tokens * self._row  # carried over and dK, read and written; keys
        total = 4 * pairs + 4 * rows * keys + rows * self._row + sums
        return Cost("d_selecting_keys", x.batch * 2 * tiles * self._pair(keys), x.batch * total)

    def _d_selecting_queries(self) -> Cost:
        x, keys = self.shape, self.config.d_selecting.keys
        tiles = int(((self.counts + keys - 1) // keys).sum())
        pairs = int((self.counts * self._block_rows()).sum())
        total = 4 * pairs + int(self.counts.sum()) * (self._row + 4) + 4 * x.tokens * x.size
        return Cost("d_selecting_queries", x.batch * tiles * self._pair(keys), x.batch * total)

    def _d_keys(self) -> Cost:
        x, tile = self.shape, self.config.d_keys
        tiles, rows = self._over_keys(tile.keys)
        shared = x.heads // x.groups
        heads = next(n for n in range(min(tile.heads, shared), 0, -1) if shared % n == 0)
        chunks = x.heads // heads
        reads = chunks * (rows * (self._row + heads * (2 * self._row + 8)) + tiles * tile.keys * 4)
        reads += chunks * x.tokens * self._row + x.groups * x.tokens * (4 * self._row + 8) + 4 * x.tokens * x.size
        products = chunks * tiles * self._pair(tile.keys) * (1 + 4 * heads)
        return Cost("d_keys", x.batch * products, x.batch * reads)

    def _flash(self, name: str, keys: int, products: int, of_keys: int) -> Cost:
        x = self.shape
        seen = self._seen()
        tiles, each = int(((seen + keys - 1) // keys).sum()), x.batch * x.heads
        total = each * (int(seen.sum()) * of_keys * self._row + x.tokens * (2 * self._row + 4))
        return Cost(name, each * tiles * self._pair(keys) * products, total)


def step_cost(shape: Shape, kept: int) -> Cost:
    """One step of decoding with `kept` tokens in the slots, the new one among them; `tokens` of the shape is unused."""
    x = shape
    row = x.size * x.width
    rows = padded(x.heads // x.groups)
    programs = x.groups * (kept * (12 + 2 * row) + 4 * row)  # who leaves; keys and values, and the new ones
    heads = x.heads * (4 * kept + 2 * row)  # F; queries and outputs
    moved = kept * (12 + row)  # F after the step, by the last program of a row
    return Cost("step", 4 * x.batch * x.groups * rows * kept * padded(x.size), x.batch * (programs + heads + moved))


def seconds(costs: list[Cost], card: Card) -> float:
    """A prediction: each kernel takes as long as its products, or its bytes from the cache, whichever is more."""
    return sum(max(cost.products / (card.products * REACHED), cost.bytes / card.cache) for cost in costs)


CARDS: tuple[tuple[Card, configs.Card], ...] = ((A100, configs.A100), (H100, configs.H100))


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
    print(records.write_record(args.out, Record(REACHED, rows, steps), seed=None))


if __name__ == "__main__":
    main()
