"""Every GPU kernel, compiled for cards that are not here: `python benchmarks/gpu_compile.py`.

Forward, backward, decode step and eviction order, in the configurations that users get, in every dtype, for heads of 64
and 128. The record has the registers, spills and shared memory of each kernel, as ptxas and Triton tell them, and
whether that fits the card. Then the rarer calls (masks, biases, states, soft caps, ...), for one card in bf16.

Nothing runs, and nothing is timed. It takes about ten minutes of one core; `--jobs` spreads it over several, and
`--extend` adds to the record that is there, if that is of the same kernels.

A call on tensors that are nowhere (the meta device) launches what it would launch on a GPU; `instead` catches the
launches, and Triton compiles each kernel with exactly these arguments for the target it is told.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gpu_check import SITUATIONS, make
from rich.console import Console
from rich.table import Table
from torch import Tensor

from selattn.errors import SelattnError
from selattn.ops import AuxRequest, Request, Rules, Selection
from selattn.ops.backends.triton import cache, configs, kernels, selfcheck
from selattn.ops.backends.triton.attention import OPERATOR, backward, forward
from selattn.ops.backends.triton.prepare import ALWAYS, instead
from selattn.ops.eviction import Order, OrderCall, Stored
from selattn.ops.request import Tokens
from selattn.utils import records
from selattn.utils.progress import Shown

TARGETS = (80, 86, 90, 100)
DTYPES = ("bfloat16", "float16", "float32")
SIZES = (64, 128)
RARER_ON = (80, "bfloat16", 64)


NOWHERE = torch.device("meta")
BATCH, HEADS, GROUPS, TOKENS, BUDGET = 2, 32, 16, 4096, 256
RULES = Rules(Selection())


def _nothing(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=NOWHERE)


def both_passes(request: Request) -> None:
    """Forward and backward, with a gradient of everything that comes back, for every input."""
    found = forward(request)
    saved = {name: getattr(found, name) for name in OPERATOR.saved}
    wanted = {"output": True, "memory": request.wanted.memory, "final_f": request.wanted.final_f}
    came = {name: torch.empty_like(getattr(found, name)) if asked else None for name, asked in wanted.items()}
    given = frozenset(name for name in OPERATOR.gradients if getattr(request, name) is not None)
    backward(request, saved, came, given)


def plain(dtype: torch.dtype, size: int, groups: int) -> Request:
    """Attention as it is by default: whole sequences, M wanted."""
    query = _nothing(BATCH, HEADS, TOKENS, size, dtype=dtype)
    key, value = (_nothing(BATCH, groups, TOKENS, size, dtype=dtype) for _ in range(2))
    return Request(query, key, value, RULES, AuxRequest(memory=True))


def situation(name: str, dtype: torch.dtype, size: int) -> Request:
    """One of the situations."""
    return make(name, selfcheck.Size(320, size, dtype, NOWHERE))


def one_step(dtype: torch.dtype, size: int, rules: Rules = RULES, separate: int = 0, biased: bool = False) -> None:
    """A step of decoding over full slots. `separate`: masks of a separate form; `biased`: a bias by positions."""
    masks = separate or rules.masks(None)
    query, new = (_nothing(BATCH, heads, 1, size, dtype=dtype) for heads in (HEADS, GROUPS))
    stored = _nothing(BATCH, GROUPS, BUDGET, size, dtype=dtype)
    own = _nothing(BATCH, separate, 1, size, dtype=dtype) if separate else None
    slots = Stored(
        keys=stored,
        values=stored,
        position=_nothing(BATCH, 1, BUDGET, dtype=torch.int32),
        f=_nothing(BATCH, masks, 1, BUDGET),
        score=_nothing(BATCH, 1, 0),
        selection_keys=_nothing(BATCH, separate, BUDGET, size, dtype=dtype) if separate else None,
    )
    rows, length = (_nothing(BATCH, dtype=torch.int64) for _ in range(2))
    bias = _nothing(1, HEADS, 1, BUDGET + 1) if biased else None
    tokens = Tokens(query, new, new, None, own, own)
    call = cache.StepCall(tokens, slots, rows, length, bias, rules, BUDGET, BUDGET, 0, 0.0)
    cache.run_step(call)


def one_order(dtype: torch.dtype, size: int, rules: Rules = RULES, separate: int = 0, biased: bool = False) -> None:
    """The eviction order of a prompt. `separate`: masks of a separate form; `biased`: a bias by positions."""
    masks = separate or rules.masks(None)
    query = _nothing(BATCH, HEADS, TOKENS, size, dtype=dtype)
    keys = _nothing(BATCH, GROUPS, TOKENS, size, dtype=dtype)
    form = _nothing(BATCH, separate, TOKENS, size, dtype=dtype) if separate else None
    f = _nothing(BATCH, masks, TOKENS)
    before = Order(_nothing(BATCH, 1, TOKENS, dtype=torch.int64), f, f)
    positions = _nothing(BATCH, TOKENS, dtype=torch.int64)
    bias = _nothing(1, HEADS, TOKENS, TOKENS) if biased else None
    cache.run_order(
        OrderCall(query, keys, positions, before, rules, bias, form, form, 0, 0.0, BUDGET, masks > 0, history=False)
    )


Call = Callable[[torch.dtype, int], Any]

# What every user runs, by name.
CALLS: dict[str, Call] = {
    "attention": lambda dtype, size: both_passes(plain(dtype, size, HEADS)),
    "attention, grouped heads": lambda dtype, size: both_passes(plain(dtype, size, GROUPS)),
    "decode step": one_step,
    "eviction order": one_order,
}

_EVERYTHING = Rules(Selection((3, 1), relu=False, shift=False), strength=0.5, softcap=5.0, window=99)

# What some run.
RARER: dict[str, Call] = {
    **{
        name: lambda dtype, size, name=name: both_passes(situation(name, dtype, size))  # type: ignore[misc]
        for name in SITUATIONS
    },
    "decode step: everything": lambda dtype, size: one_step(dtype, size, _EVERYTHING, biased=True),
    "decode step: separate form": lambda dtype, size: one_step(dtype, size, RULES, 2),
    "decode step: standard": lambda dtype, size: one_step(dtype, size, Rules()),
    "eviction order: everything": lambda dtype, size: one_order(dtype, size, _EVERYTHING, biased=True),
    "eviction order: separate form": lambda dtype, size: one_order(dtype, size, RULES, 2),
    "eviction order: standard": lambda dtype, size: one_order(dtype, size, Rules()),
}


class Compiled(NamedTuple):
    """What one compiled kernel takes of a card."""

    kernel: str
    options: dict[str, int]  # sizes of tiles, warps, stages
    registers: int  # of a thread
    spill_stores: int  # bytes of a thread
    spill_loads: int
    shared: int  # bytes of shared memory
    tensor: int  # columns of tensor memory, which sm_100 has


def compile_launches(call: Callable[[], object], capability: int) -> list[Compiled]:
    """What `call` would launch on a card of that capability (80 is sm_80), each kernel once. Nothing runs."""
    found: dict[str, Compiled] = {}

    def compile_one(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        name = kernel.fn.__name__
        if name not in found:
            found[name] = _compile(kernel, grid, arguments, options)

    with configs.pretend(capability), _target(capability), instead(compile_one):
        call()
    return list(found.values())


def sources() -> str:
    """A hash of what is compiled: the kernels' text and their configurations."""
    files = [*sorted(Path(kernels.__file__).parent.glob("*.py")), Path(configs.__file__)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


_known: dict[int, tuple[object, Compiled]] = {}  # by Triton's object, which it has one of for equal arguments


def _compile(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], options: dict[str, Any]) -> Compiled:
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        made = kernel.warmup(*arguments, grid=grid, **options)
    if id(made) not in _known:
        _known[id(made)] = made, _read(kernel, made, log.getvalue(), options)
    return _known[id(made)][1]


def _read(kernel: Any, made: Any, said: str, options: dict[str, Any]) -> Compiled:
    """From what ptxas said, and from what Triton says."""

    def number(pattern: str) -> int:
        match = re.search(pattern, said)
        if match is None:
            raise RuntimeError(f"ptxas did not say what {kernel.fn.__name__} takes: {said!r}")
        return int(match[1])

    return Compiled(
        kernel.fn.__name__,
        {name: int(value) for name, value in options.items() if name not in ALWAYS},
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes spill stores"),
        number(r"(\d+) bytes spill loads"),
        made.metadata.shared,
        int(getattr(made.metadata, "tmem_size", 0) or 0),
    )


@contextlib.contextmanager
def _target(capability: int) -> Iterator[None]:
    """Within it Triton takes this machine for one with such a card, compiles anew, and shows what ptxas says."""
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase
    from triton.runtime import driver

    class Absent(DriverBase):
        """As much of a driver as the compiler asks for."""

        @classmethod
        def is_active(cls) -> bool:
            return True

        def map_python_to_cpp_type(self, ty: str) -> str:
            raise NotImplementedError

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", capability, 32)

        def get_active_torch_device(self) -> Any:
            raise NotImplementedError

        def get_benchmarker(self) -> Any:
            raise NotImplementedError

        def get_current_device(self) -> int:
            return capability  # compiled kernels are kept for each device

        def get_current_stream(self, device: int) -> int:
            return 0

    before = driver._active
    driver.set_active(Absent())
    try:
        with knobs.compilation.scope(), knobs.nvidia.scope():
            knobs.compilation.always_compile = True
            knobs.nvidia.dump_ptxas_log = True
            yield
    finally:
        driver._active = before


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
    call = {**CALLS, **RARER}[name]
    found = compile_launches(lambda: call(getattr(torch, dtype), size), target)
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
    parser.add_argument("--calls", nargs="+", default=list(CALLS), choices=list(CALLS))
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
    text = sources()
    if args.extend:
        before(args.out, text)
    usual = [] if args.only_rarer else list(product(args.calls, args.targets, args.dtypes, args.sizes))
    todo = usual + [(name, *RARER_ON) for name in ([] if args.no_rarer else RARER)]
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
        old = before(args.out, text)
        rows, others = merged(old.rows, rows), merged(old.rarer, others)
    targets = in_short(rows)
    draw(targets)
    outside = [row for row in (*rows, *others) if row.shared > row.limit]
    for row in outside:
        print(f"{row.kernel} of {row.call!r} on sm_{row.target} takes {row.shared:,} bytes, and has {row.limit:,}")
    print(records.write_record(args.out, Record(text, tuple(targets), tuple(rows), tuple(others)), seed=None))
    raise SystemExit(bool(outside))


if __name__ == "__main__":
    try:
        main()
    except SelattnError as error:
        print(f"gpu_compile.py: {error}", file=sys.stderr)
        sys.exit(2)
