"""How large the tiles are and how many warps work on one: plain data for each kind of card, not tuned at run time.

No number here has been measured: there was no GPU. They are what compiles without spilling (where that can be had) and
fits the card's shared memory; `results/triton_compile.json` tells registers, spills and shared memory of each.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Tile(NamedTuple):
    """Of one kernel: keys in a tile, warps, stages of loads in flight, heads that share F."""

    keys: int
    warps: int
    stages: int
    heads: int = 1


class Config(NamedTuple):
    """Of one call. `rows` is one for all kernels: F is stored at the first row of each block of that many."""

    rows: int
    select: Tile
    attend: Tile
    d_forgetting: Tile
    d_selecting: Tile
    d_keys: Tile
    d_queries: Tile


# Triton's interpreter, on the CPU.
INTERPRETED = Config(
    32, Tile(32, 4, 1), Tile(32, 4, 1, 2), Tile(32, 4, 1), Tile(32, 4, 1), Tile(32, 4, 1, 2), Tile(32, 4, 1, 2)
)

HALF_64 = Config(
    64, Tile(64, 4, 2), Tile(64, 4, 2, 2), Tile(64, 4, 2), Tile(64, 4, 2), Tile(64, 4, 2), Tile(64, 4, 2, 2)
)
HALF_128 = Config(64, Tile(64, 4, 2), Tile(32, 4, 2, 1), Tile(64, 8, 2), Tile(64, 4, 2), Tile(64, 8, 2), Tile(32, 4, 2))
SINGLE_64 = Config(32, Tile(32, 4, 2), Tile(32, 4, 2), Tile(32, 4, 1), Tile(32, 4, 1), Tile(32, 4, 1), Tile(32, 4, 1))
SINGLE_128 = Config(32, Tile(32, 4, 2), Tile(32, 4, 2), Tile(32, 4, 1), Tile(32, 4, 1), Tile(32, 4, 1), Tile(32, 4, 1))


def choose(device: torch.device, dtype: torch.dtype, size: int) -> Config:
    """The configuration for heads of at most `size` features."""
    if device.type == "cpu":
        return INTERPRETED
    if dtype == torch.float32:
        return SINGLE_64 if size <= 64 else SINGLE_128
    return HALF_64 if size <= 64 else HALF_128
