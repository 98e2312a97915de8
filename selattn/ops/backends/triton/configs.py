"""Where the kernels run, what they can hold, and how large their tiles are: plain data for each kind of card.

Nothing is tuned at run time, and no number here has been timed: there was no GPU. They are what compiles without
spilling (where that can be had), fits the card's shared memory, and costs the least by `benchmarks/gpu_cost.py`;
`results/gpu_compile.json` has registers, spills and shared memory of each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selattn.errors import missing

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST_HEAD = 128


def interpreted() -> bool:
    """Whether Triton runs its kernels in Python, on the CPU: TRITON_INTERPRET=1, set before triton is imported."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")


def unavailable() -> str | None:
    """Why this backend cannot run on this machine; None if it can."""
    if (line := missing("triton")) is not None:
        return f"{line} (Linux)"
    if not (torch.cuda.is_available() or interpreted()):
        return "there is no CUDA device (TRITON_INTERPRET=1 runs the kernels in Python, for tests)"
    return None


def cannot_hold(query: Tensor, value: Tensor | None, selection_query: Tensor | None) -> str | None:
    """Why the kernels cannot take tokens on that device, of that type, with heads of that size; None if they can."""
    device = query.device.type
    selecting = query if selection_query is None else selection_query
    largest = max(x.shape[3] for x in (query, value, selecting) if x is not None)
    reasons = {
        f"it runs on CUDA devices, not on {device}": device != "cuda" and not (device == "cpu" and interpreted()),
        f"it takes fp32, bf16 and fp16, not {query.dtype}": query.dtype not in DTYPES,
        f"it takes fp32, bf16 and fp16 for the separate form, not {selecting.dtype}": selecting.dtype not in DTYPES,
        f"its heads have at most {LARGEST_HEAD} features": largest > LARGEST_HEAD,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


class Tile(NamedTuple):
    """Of one kernel: keys in a tile, warps, stages of loads in flight, heads that share F."""

    keys: int
    warps: int
    stages: int
    heads: int = 1

    def effort(self) -> dict[str, Any]:
        """What a launch is told beside the kernel's own arguments."""
        return {"num_warps": self.warps, "num_stages": self.stages}


class Config(NamedTuple):
    """Of one call. `rows` is one for all kernels: F is stored at the first row of each block of that many."""

    rows: int
    select: Tile
    attend: Tile
    d_forgetting: Tile
    d_selecting: Tile
    d_keys: Tile
    d_queries: Tile
    step: Tile = Tile(32, 4, 2)

    def with_matrices(self) -> Config:
        """For calls with a mask or a bias of pairs, whose tiles take room too: one head and one load at a time."""
        return Config(self.rows, *(Tile(min(tile.keys, 32), 8 if self.rows > 32 else 4, 1) for tile in self[1:]))


# Triton's interpreter, on the CPU.
INTERPRETED = Config(
    32, Tile(32, 4, 1), Tile(32, 4, 1, 2), Tile(32, 4, 1), Tile(32, 4, 1), Tile(32, 4, 1, 2), Tile(32, 4, 1, 2)
)

HALF_64 = Config(
    64,
    select=Tile(64, 4, 2),
    attend=Tile(32, 4, 3, 2),
    d_forgetting=Tile(64, 8, 2),
    d_selecting=Tile(32, 4, 2),
    d_keys=Tile(32, 4, 2),
    d_queries=Tile(64, 4, 2, 2),
    step=Tile(64, 8, 2),
)
HALF_128 = Config(
    64,
    select=Tile(64, 4, 2),
    attend=Tile(32, 4, 2),
    d_forgetting=Tile(64, 8, 2),
    d_selecting=Tile(32, 4, 2),
    d_keys=Tile(32, 8, 2),
    d_queries=Tile(32, 4, 2),
    step=Tile(32, 4, 2),
)
SINGLE_64 = Config(
    32,
    select=Tile(32, 4, 2),
    attend=Tile(32, 4, 2),
    d_forgetting=Tile(32, 4, 1),
    d_selecting=Tile(32, 8, 1),
    d_keys=Tile(32, 8, 1),
    d_queries=Tile(32, 8, 1),
    step=Tile(32, 8, 1),
)
SINGLE_128 = Config(
    32,
    select=Tile(32, 4, 2),
    attend=Tile(32, 8, 2),
    d_forgetting=Tile(32, 4, 1),
    d_selecting=Tile(32, 8, 1),
    d_keys=Tile(16, 8, 1),
    d_queries=Tile(16, 8, 1),
    step=Tile(32, 8, 1),
)


class Card(NamedTuple):
    """A kind of card: the shared memory that a program may have, and its configurations."""

    name: str
    shared: int  # bytes
    half_64: Config  # fp16 and bf16, heads of at most 64
    half_128: Config
    single_64: Config  # fp32
    single_128: Config


A100 = Card("A100", 163 << 10, HALF_64, HALF_128, SINGLE_64, SINGLE_128)
# So many more products a second that bytes count: a larger tile in d_keys, though it spills a little.
H100 = Card("H100", 227 << 10, HALF_64._replace(d_keys=Tile(64, 8, 2)), HALF_128, SINGLE_64, SINGLE_128)
CONSUMER = Card("consumer", 99 << 10, HALF_64, HALF_128, SINGLE_64, SINGLE_128)

# By compute capability; another one is taken for the nearest below it.
CARDS = {80: A100, 86: CONSUMER, 89: CONSUMER, 90: H100, 100: H100, 103: H100, 120: CONSUMER}

_pretended: int | None = None


def capability(device: torch.device) -> int:
    """80 for an A100."""
    if _pretended is not None:
        return _pretended
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@contextmanager
def pretend(card: int) -> Iterator[None]:
    """Within it, all devices but the CPU are cards of that capability: for compiling without one."""
    global _pretended
    before, _pretended = _pretended, card
    try:
        yield
    finally:
        _pretended = before


def card_of(number: int) -> Card:
    """The kind of card with that capability."""
    return CARDS[max((known for known in CARDS if known <= number), default=min(CARDS))]


SIZES = (64, 128)  # of heads that have a configuration


def size_class(size: int) -> int:
    """Which of `SIZES` heads of so many features are configured as."""
    return next((known for known in SIZES if size <= known), SIZES[-1])


def choose(device: torch.device, dtype: torch.dtype, size: int) -> Config:
    """The configuration for heads of at most `size` features."""
    if device.type == "cpu":
        return INTERPRETED
    card, small = card_of(capability(device)), size_class(size) == SIZES[0]
    if dtype == torch.float32:
        return card.single_64 if small else card.single_128
    return card.half_64 if small else card.half_128
