"""Parity* (section A.2 of the paper): bits, of which every other one is the parity of the random ones before it.

    <BOS> 1 1 0 1 1 0

Bits are counted from 1. Those at odd positions are random. The one at an even position is the parity of all earlier odd
ones, which is the XOR of the two bits before it (and at position 2, where there is but one, that bit). The loss is on
the even positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from selattn.data.draws import Draw
from selattn.data.task import IGNORE, Task, at_least


@dataclass(frozen=True)
class Parity(Task):
    """Random bits and their parities in turn.

    Args:
        bits: how many there are in a row; the paper does not give a number.
    """

    name: ClassVar[str] = "parity"

    bits: int = 64

    def __post_init__(self) -> None:
        at_least(self, bits=2)

    @property
    def tokens(self) -> tuple[str, ...]:
        """<BOS> and the two bits."""
        return ("<BOS>", "0", "1")

    @property
    def context(self) -> int:
        """<BOS> and the bits."""
        return 1 + self.bits

    def rows(self, draw: Draw) -> dict[str, NDArray[np.int64]]:
        """See `Task.rows`. The bit at position p, counted from 1, is token p: <BOS> is token 0."""
        random = draw.below(2, (self.bits + 1) // 2)
        ids = np.zeros((len(random), self.context), np.int64)
        ids[:, 1::2] = 1 + random
        ids[:, 2::2] = 1 + random.cumsum(1)[:, : self.bits // 2] % 2
        labels = np.full_like(ids, IGNORE)
        labels[:, 2::2] = ids[:, 2::2]
        return {"input_ids": ids, "labels": labels}
