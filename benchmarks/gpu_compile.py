"""Every GPU kernel, compiled for cards that are not here: `python benchmarks/gpu_compile.py`.

Forward, backward, decode step and eviction order, in the configurations that users get, in every dtype, for heads of 64
and 128. The record has the registers, spills and shared memory of each kernel, as ptxas and Triton tell them, and
whether that fits the card. Then the rarer calls (masks, biases, states, soft caps, ...), for one card in bf16.

Nothing runs, and nothing is timed. It takes about ten minutes of one core; `--jobs` spreads it over several, and
`--extend` adds to the record that is there, if that is of the same kernels.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from selattn.errors import SelattnError
from selattn.ops.backends.triton import ahead, calls, configs
from selattn.utils import records
from selattn.utils.progress import Shown

TARGETS = (80, 86, 90, 100)
DTYPES = ("bfloat16", "float16", "float32")
SIZES = (64, 128)
RARER = (80, "bfloat16", 64)


@dataclass(frozen=True)
class Row:
    """A kernel, compiled.

    Attributes:
        call: what launches it.
        target: the card's compute capability, 80 for sm_80.
        dtype: of queries, keys and values.
        size: of a head.
        kernel: its name.
        options: sizes of its tiles, warps, stages.
        registers: of a thread.
        spills: bytes that a thread stores for want of registers.
        shared: bytes of shared memory.
        limit: what the card allows a program to have of it.
    """

    call: str
    target: int
    dtype: str
    size: int
    kernel: str
    options: str
    registers: int
    spills: int
    shared: int
    limit: int


@dataclass(frozen=True)
class Target:
    """A card and a dtype in short.

    Attributes:
        target, dtype, size: as in a row.
        kernels: how many were compiled.
        fit: how many of them fit the card's shared memory.
        shared: the largest shared memory of all, in bytes.
        spills_forward: bytes that the kernels of the forward pass spill, the most of all.
        spills_backward: those of the backward pass.
        spills_decode: those of decode step and eviction order.
    """

    target: int
    dtype: str
    size: int
    kernels: int
    fit: int
    shared: int
    spills_forward: int
    spills_backward: int
    spills_decode: int


@dataclass(frozen=True)
class Record:
    """What is written: a hash of the kernels' text, each card in short, the usual calls' kernels, the rarer calls'."""

    kernels: str
    targets: tuple[Target, ...]
    rows: tuple[Row, ...]
    rarer: tuple[Row, ...]


FORWARD = ("bounds", "select", "list_columns", "attend")
DECODE = ("step", "strip_logits", "evict")


def compiled(name: str, target: int, dtype: str, size: int) -> list[Row]:
    """The kernels of one call."""
    call = {**calls.CALLS, **calls.RARER}[name]
    found = ahead.compile_launches(lambda: call(getattr(torch, dtype), size), target)
    limit = configs.card_of(target).shared
    rows = []
    for x in found:
        options = " ".join(f"{key}={value}" for key, value in x.options.items())
        spills = max(x.spill_stores, x.spill_loads)
        rows.append(Row(name, target, dtype, size, x.kernel, options, x.registers, spills, x.shared, limit))
    return rows


def before(path: Path, kernels: str) -> Record:
    """The record that is there; an empty one if there is none. One of other kernels is refused."""
    if not path.exists():
        return Record(kernels, (), (), ())
    found = records.read_body(path, Record)
    if found.kernels != kernels:
        raise SelattnError(f"{path} is of other kernels: without --extend it is made anew")
    return found


def merged(old: tuple[Row, ...], new: list[Row]) -> list[Row]:
    """All rows, card by card; of a call that was compiled again the new ones."""
    again = {(row.call, row.target, row.dtype, row.size) for row in new}
    kept = [row for row in old if (row.call, row.target, row.dtype, row.size) not in again]
    return sorted([*kept, *new], key=lambda row: (row.target, DTYPES.index(row.dtype), row.size))


def in_short(rows: list[Row]) -> list[Target]:
    """A line for each card, dtype and size."""

    def most(some: Iterable[Row]) -> int:
        return max((row.spills for row in some), default=0)

    found = []
    for target, dtype, size in dict.fromkeys((row.target, row.dtype, row.size) for row in rows):
        some = [row for row in rows if (row.target, row.dtype, row.size) == (target, dtype, size)]
        found.append(
            Target(
                target,
                dtype,
                size,
                kernels=len(some),
                fit=sum(row.shared <= row.limit for row in some),
                shared=max(row.shared for row in some),
                spills_forward=most(row for row in some if row.kernel in FORWARD),
                spills_backward=most(row for row in some if row.kernel not in (*FORWARD, *DECODE)),
                spills_decode=most(row for row in some if row.kernel in DECODE),
            )
        )
    return found


def draw(targets: list[Target]) -> None:
    """The lines as a table."""
    table = Table("card", "dtype", "head", "kernels", "fit", "shared", "spills: forward", "backward", "decode")
    for x in targets:
        spills = map(str, (x.spills_forward, x.spills_backward, x.spills_decode))
        table.add_row(
            f"sm_{x.target}", x.dtype, str(x.size), str(x.kernels), str(x.fit), f"{x.shared // 1024} KB", *spills
        )
    Console().print(table)


def main() -> None:
    """Compile, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, nargs="+", default=list(TARGETS), choices=sorted(configs.CARDS))
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--calls", nargs="+", default=list(calls.CALLS), choices=list(calls.CALLS))
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--no-rarer", action="store_true", help="leave out the rarer calls")
    parts.add_argument("--only-rarer", action="store_true", help="leave out the usual calls")
    parser.add_argument("--extend", action="store_true", help="keep what the record has beside")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    parser.add_argument("--out", type=Path, default=Path("results/gpu_compile.json"))
    args = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        parser.error("TRITON_INTERPRET is set: nothing would be compiled")
    records.check_output(args.out)
    kernels = ahead.sources()
    if args.extend:
        before(args.out, kernels)
    usual = [] if args.only_rarer else list(product(args.calls, args.targets, args.dtypes, args.sizes))
    todo = usual + [(name, *RARER) for name in ([] if args.no_rarer else calls.RARER)]
    found: list[list[Row]] = []
    progress = Shown()
    progress.begin(len(todo), "compiling")
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        for each in pool.map(compiled, *zip(*todo, strict=True)):
            found.append(each)
            progress.advance()
    progress.end()
    rows, others = ([row for each in some for row in each] for some in (found[: len(usual)], found[len(usual) :]))
    if args.extend:  # another may have written meanwhile
        old = before(args.out, kernels)
        rows, others = merged(old.rows, rows), merged(old.rarer, others)
    targets = in_short(rows)
    draw(targets)
    outside = [row for row in (*rows, *others) if row.shared > row.limit]
    for row in outside:
        print(f"{row.kernel} of {row.call!r} on sm_{row.target} takes {row.shared:,} bytes, and has {row.limit:,}")
    print(records.write_record(args.out, Record(kernels, tuple(targets), tuple(rows), tuple(others)), seed=None))
    raise SystemExit(bool(outside))


if __name__ == "__main__":
    try:
        main()
    except SelattnError as error:
        print(f"gpu_compile.py: {error}", file=sys.stderr)
        sys.exit(2)
