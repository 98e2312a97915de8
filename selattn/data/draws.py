"""Randomness without a state: what belongs to sample i is a pure function of (seed, i).

So any worker, in any order, on any machine, makes the same sample, and a run that resumes at sample i neither skips
nor repeats one. All of it rests on the output function of SplitMix64 (Steele, Lea and Flood, 2014).

Shapes: B samples, C draws for each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from selattn.errors import SelattnError

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1
_ROUNDS = 6


class Draw:
    """The draws of B samples, one after another. Two with the same seed and indices give the same numbers."""

    def __init__(self, seed: int, indices: Sequence[int] | NDArray[np.int64]) -> None:
        start = np.uint64(mix(check_seed(seed) + _GOLDEN))
        place = np.asarray(indices).astype(np.uint64)[:, None] + np.uint64(1)
        self._key = _mix(start + place * np.uint64(_GOLDEN))  # [B, 1]; seed and index must not play the same part
        self._used = 0

    def below(self, bound: int | NDArray[np.int64], count: int = 1) -> NDArray[np.int64]:
        """[B, C] uniform in 0 .. bound - 1; a bound of its own for each sample is [B, 1].

        The upper half of a word times the bound: no value is off from uniform by more than bound / 2^32.
        """
        counter = np.arange(self._used + 1, self._used + count + 1, dtype=np.uint64)
        self._used += count
        words = _mix(self._key + counter * np.uint64(_GOLDEN)) >> np.uint64(32)
        return ((words * np.asarray(bound).astype(np.uint64)) >> np.uint64(32)).astype(np.int64)


def shuffled(index: int, size: int, seed: int, epoch: int) -> int:
    """Where a shuffled epoch of `size` samples has its sample `index`: a permutation that is computed, not stored.

    A Feistel network over the next power of four, walked until it is back inside (Black and Rogaway, 2002): each step
    is a bijection, so their sequence is one, and a hundred million documents need no list in any worker.
    """
    if not 0 <= index < size:
        raise IndexError(f"sample {index} of an epoch of {size}")
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    start = mix(check_seed(seed) + _GOLDEN)
    keys = [mix(start + (epoch * _ROUNDS + r + 1) * _GOLDEN) for r in range(_ROUNDS)]
    while True:
        left, right = index >> half, index & mask
        for key in keys:
            left, right = right, left ^ (mix(key ^ right) & mask)
        index = left << half | right
        if index < size:
            return index


def mix(word: int) -> int:
    """SplitMix64's output function on one word: a bijection of 64 bits in which each bit depends on all."""
    word &= _WORD
    word = (word ^ word >> 30) * _FIRST & _WORD
    word = (word ^ word >> 27) * _SECOND & _WORD
    return word ^ word >> 31


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The same on an array."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(_FIRST)
    words = (words ^ words >> np.uint64(27)) * np.uint64(_SECOND)
    return words ^ words >> np.uint64(31)


def check_seed(seed: int) -> int:
    """A seed is one word; anything else would wrap around and collide."""
    if not 0 <= seed <= _WORD:
        raise SelattnError(f"a seed must be in 0 .. 2^64 - 1, not {seed}")
    return seed
