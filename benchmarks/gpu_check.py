"""Whether the GPU kernels are right on this machine's GPU: `python benchmarks/gpu_check.py`, which writes a record.

Every kind of call, in every dtype, is held against the reference, by the rule of the self-check
(`selattn/ops/backends/triton/selfcheck.py`). The record helps us wherever something is wrong: please send it. The exit
code is 0 if all is right, 1 if not, and 2 where there is no GPU. With TRITON_INTERPRET=1 small examples run on the CPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from torch import Tensor

from selattn.errors import SelattnError
from selattn.ops import AuxRequest, Request, Rules, Selection, Sequences
from selattn.ops.backends.triton import Triton, configs, selfcheck
from selattn.ops.backends.triton.selfcheck import HEADS, Size
from selattn.ops.rules import compute_dtype
from selattn.utils import records
from selattn.utils.progress import Progress, Shown

FINAL = AuxRequest(memory=True, final_f=True)


class Situation(NamedTuple):
    """A call of attention, for any number n of tokens. Two rows in the batch, four heads."""

    rules: Rules = Rules(Selection())
    wanted: AuxRequest = AuxRequest(memory=True)
    gain: float = 2.0  # of the queries
    groups: int = 2
    past: float = 0.0  # keys before the first query, as a share of n
    sequences: Callable[[int], Sequences] | None = None
    until: Callable[[int], Tensor] | None = None
    mask: Callable[[int], Tensor] | None = None
    bias: Callable[[int], tuple[int, ...]] | None = None  # its shape
    separate: int = 0  # masks of a separate form
    value_size: float = 1.0  # as a share of the head's
    tokens: float = 1.0  # as a share of n


def until_rows(n: int) -> Tensor:
    """[2, n] the row from which each token is evicted."""
    return torch.arange(n)[None] + torch.tensor([[n // 4], [2 * n // 3]])


def rows_of_tokens(n: int) -> Tensor:
    """[1, n] their numbers."""
    return torch.arange(n)[None]


def packed(n: int) -> Sequences:
    """Two documents in each row."""
    return Sequences.from_documents(rows_of_tokens(n) // torch.tensor([[n // 3], [4 * n // 5]]))


def padded_documents(n: int) -> Sequences:
    """Two documents in each row, and padding before them in the first."""
    ids = rows_of_tokens(n) // torch.tensor([[n // 3], [4 * n // 5]])
    return Sequences.from_documents(ids, rows_of_tokens(n) >= torch.tensor([[n // 9], [0]]))


SITUATIONS = {
    "sharp": Situation(gain=6.0, tokens=1.75),
    "everything": Situation(
        Rules(Selection((3, 1)), strength=0.7, softcap=5.0), sequences=padded_documents, until=until_rows
    ),
    "bias": Situation(bias=lambda n: (2, HEADS, n, n)),
    "default": Situation(),
    "nothing left out": Situation(Rules(Selection(), tolerance=0.0)),
    "one head for each key": Situation(groups=4),
    "one key for all heads": Situation(groups=1),
    "another head": Situation(Rules(Selection(3))),
    "padded": Situation(sequences=lambda n: Sequences.from_mask(rows_of_tokens(n) >= torch.tensor([[n // 2], [0]]))),
    "packed": Situation(sequences=packed),
    "padding in between": Situation(
        sequences=lambda n: Sequences.from_mask((rows_of_tokens(n) + torch.tensor([[0], [1]])) % 3 > 0)
    ),
    "nothing but padding": Situation(sequences=lambda n: Sequences.from_mask(torch.zeros(2, n, dtype=torch.bool))),
    "window": Situation(Rules(Selection(), window=7)),
    "soft cap": Situation(Rules(Selection(), softcap=2.0)),
    "evicted": Situation(until=lambda n: until_rows(n).unsqueeze(1)),
    "evicted by each head": Situation(until=lambda n: torch.stack([until_rows(n), until_rows(n).flip(-1)], 1)),
    "bias of keys": Situation(Rules(Selection(), softcap=3.0), bias=lambda n: (1, 1, 1, n)),
    "mask": Situation(mask=lambda n: torch.arange(n * n).view(1, 1, n, n) % 3 > 0),
    "strength": Situation(Rules(Selection(), strength=0.4)),
    "no shift": Situation(Rules(Selection(shift=False))),
    "no relu": Situation(Rules(Selection(relu=False))),
    "nothing protected": Situation(Rules(Selection(protect_first=False, protect_self=False))),
    "two masks": Situation(Rules(Selection((3, 1)))),
    "a mask for each head": Situation(Rules(Selection((3, 1, 1, 0))), gain=6.0),
    "separate form": Situation(separate=2),
    "separate form, biases of heads": Situation(separate=2, bias=lambda n: (1, HEADS, n, n)),
    "separate form, masks of heads": Situation(
        separate=2,
        until=lambda n: torch.stack([until_rows(n), until_rows(n).flip(-1)], 1),
        mask=lambda n: torch.arange(HEADS * n * n).view(1, HEADS, n, n) % 7 > 3,
    ),
    "initial F": Situation(wanted=FINAL, past=0.6),
    "initial F, window": Situation(Rules(Selection(), window=6), FINAL, past=0.1),
    "initial F, not wanted": Situation(gain=6.0, past=1.1),
    "odd sizes": Situation(value_size=0.6),
    "standard": Situation(Rules(), AuxRequest()),
    "standard, window": Situation(Rules(window=9), AuxRequest(), sequences=packed),
}


def make(name: str, size: Size) -> Request:
    """The call of a situation; of numbers that the dtype has, drawn on the CPU, so the same on all devices."""
    s, chance = SITUATIONS[name], torch.Generator().manual_seed(len(name))
    n, features = int(size.n * s.tokens), size.size
    past = int(n * s.past)

    def normal(*shape: int, dtype: torch.dtype = size.dtype) -> Tensor:
        return torch.randn(shape, generator=chance).to(dtype)

    exact = compute_dtype(size.dtype)
    made = {
        "query": s.gain * normal(2, HEADS, n, features),
        "key": normal(2, s.groups, n + past, features),
        "value": normal(2, s.groups, n + past, max(1, int(features * s.value_size))),
        "start": None if s.sequences is None else s.sequences(n).start,
        "until": None if s.until is None else s.until(n).view(2, -1, n),
        "mask": None if s.mask is None else s.mask(n),
        "bias": None if s.bias is None else normal(*s.bias(n), dtype=exact),
    }
    if s.separate:
        made["selection_query"] = normal(2, s.separate, n, 5)
        made["selection_key"] = normal(2, s.separate, n + past, 5)
    if past:
        masks = s.rules.masks(made.get("selection_query"))
        made["initial_f"] = torch.cat([normal(2, masks, past, dtype=exact).abs(), torch.zeros(2, masks, n)], -1)
    placed = {key: None if x is None else x.to(size.device) for key, x in made.items()}
    return Request(**placed, rules=s.rules, wanted=s.wanted)  # type: ignore[arg-type]


def example_of(name: str) -> selfcheck.Example:
    """The example of that name: a situation, or one of the cache."""
    if name in SITUATIONS:
        return lambda size, backend: selfcheck.judge(make(name, size), backend)
    return selfcheck.CACHE[name]


LENGTHS = (1, 2, 63, 64, 65, 1000)  # around the borders of blocks


def whole(device: torch.device) -> list[tuple[str, Size]]:
    """All examples for a device: everything in every dtype, for heads of 64 and 128; lengths and sizes that break.

    In Triton's interpreter, on the CPU, they are small, and there is no bf16.
    """
    names = (*SITUATIONS, *selfcheck.CACHE)
    if device.type == "cpu":
        found = [(name, Size(37, 16, torch.float32, device)) for name in names]
        found += [("default", Size(n, 16, torch.float32, device)) for n in LENGTHS[:-1]]
        return [*found, ("default", Size(37, 16, torch.float16, device))]
    found = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        found += [(name, Size(300, size, dtype, device)) for size in (64, 128) for name in names]
        found += [("default", Size(n, 64, dtype, device)) for n in LENGTHS]
        found += [("default", Size(300, size, dtype, device)) for size in (1, 16, 40, 80)]
    return found


@dataclass(frozen=True)
class Example:
    """One call, and what is wrong with its results.

    Attributes:
        name: of the situation.
        dtype: of queries, keys and values.
        size: features of a head.
        tokens: of a sequence, but for situations that have more.
        wrong: a line for each result that is off; none if the kernels are right.
        seconds: that it took, the reference and compiling included.
    """

    name: str
    dtype: str
    size: int
    tokens: int
    wrong: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Record:
    """What is written.

    Attributes:
        device: the card, with its compute capability; or Triton's interpreter.
        driver: its version.
        kernels: a hash of the kernels' text.
        memory: of the device, in bytes; 0 for the interpreter.
        failed: how many examples are wrong.
        examples: all of them.
    """

    device: str
    driver: str
    kernels: str
    memory: int
    failed: int
    examples: tuple[Example, ...]


def check_gpu(progress: Progress | None = None) -> Record:
    """Run every example on the CUDA device."""
    if reason := configs.unavailable():
        raise SelattnError(f"the GPU kernels cannot be checked: {reason}")
    device = torch.device("cpu" if configs.interpreted() else "cuda")
    plan, backend, found = whole(device), Triton(), []
    progress = progress or Progress()
    progress.begin(len(plan), "examples")
    for name, size in plan:
        began = time.perf_counter()
        wrong = selfcheck.attempt(example_of(name), size, backend)
        seconds, dtype = time.perf_counter() - began, str(size.dtype).removeprefix("torch.")
        found.append(Example(name, dtype, size.size, size.n, tuple(wrong), seconds))
        progress.advance(1, f"{name}, {dtype}")
    progress.end()
    identity = selfcheck.identity(device)
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    failed = sum(bool(example.wrong) for example in found)
    return Record(identity["device"], identity["driver"], identity["kernels"], memory, failed, tuple(found))


def main() -> None:
    """Check, print what is wrong, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("selattn-gpu-check.json"))
    args = parser.parse_args()
    records.check_output(args.out)
    found, console = check_gpu(Shown()), Console(highlight=False, soft_wrap=True)
    for x in found.examples:
        for line in x.wrong:
            console.print(f"{x.name} ({x.dtype}, heads of {x.size}, {x.tokens:,} tokens): {line}", style="red")
    console.print(f"{len(found.examples) - found.failed} of {len(found.examples)} examples are right on {found.device}")
    console.print(f"[dim]recorded in {records.write_record(args.out, found, seed=None)}: please send it to us[/]")
    sys.exit(found.failed > 0)


if __name__ == "__main__":
    try:
        main()
    except SelattnError as error:
        print(f"gpu_check.py: {error}", file=sys.stderr)
        sys.exit(2)
