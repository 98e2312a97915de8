"""Copy (section A.2 of the paper): repeat a sequence of varying length that ends with a special token.

    <BOS> q w w e <SEP> q w w e <EOS> <PAD> <PAD>

The loss is on the copy and on its <EOS>, so that knowing where to stop is part of the task.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_lowercase
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from selattn.data.draws import Draw
from selattn.data.task import IGNORE, Task, at_least
from selattn.errors import SelattnError

_SPECIAL = ("<PAD>", "<BOS>", "<SEP>", "<EOS>")
_PAD, _BOS, _SEP, _EOS = range(4)


@dataclass(frozen=True)
class Copy(Task):
    """Lengths are uniform in shortest .. longest, symbols are uniform and may repeat.

    Args:
        longest: L_max of the paper.
        shortest: 1 in the paper.
        symbols: how many there are; the paper does not say.
    """

    name: ClassVar[str] = "copy"

    longest: int = 24
    shortest: int = 1
    symbols: int = 26

    def __post_init__(self) -> None:
        at_least(self, shortest=1, symbols=1)
        if self.longest < self.shortest:
            raise SelattnError(f"{self.name}: longest ({self.longest}) is less than shortest ({self.shortest})")

    @property
    def tokens(self) -> tuple[str, ...]:
        """The four special ones, then letters, or numbers if letters do not suffice."""
        letters = ascii_lowercase if self.symbols <= len(ascii_lowercase) else map(str, range(self.symbols))
        return (*_SPECIAL, *list(letters)[: self.symbols])

    @property
    def vocab_size(self) -> int:
        """V, without naming all tokens."""
        return len(_SPECIAL) + self.symbols

    @property
    def context(self) -> int:
        """The paper's 3 + 2 L_max."""
        return 3 + 2 * self.longest

    def rows(self, draw: Draw) -> dict[str, NDArray[np.int64]]:
        """See `Task.rows`; padding stands on the right."""
        length = self.shortest + draw.below(self.longest - self.shortest + 1)  # [B, 1]
        symbol = len(_SPECIAL) + draw.below(self.symbols, self.longest)  # [B, longest]
        place = np.arange(self.context)[None]  # [1, N]
        sep, eos = length + 1, 2 * length + 2
        in_copy = (place > sep) & (place < eos)
        source = np.where(place < sep, place - 1, place - sep - 1)  # which symbol stands here, if one does
        ids = np.take_along_axis(symbol, source.clip(0, self.longest - 1), 1)
        ids = np.where(place == 0, _BOS, np.where(place == sep, _SEP, np.where(place == eos, _EOS, ids)))
        ids = np.where(place > eos, _PAD, ids)
        labels = np.where(in_copy | (place == eos), ids, IGNORE)
        return {"input_ids": ids, "labels": labels, "attention_mask": (place <= eos).astype(np.int64)}
