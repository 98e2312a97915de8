"""Text to evaluate on: rows in a fixed order, of which a search and its report take different ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np
from torch import Tensor

from selattn.data import DocumentRows, PackedRows, Reading, Tokenizer, store_for
from selattn.data.draws import shuffled
from selattn.errors import SelattnError

LONG = Fraction(9, 10)  # of the context: what the paper calls very long examples
LAYOUTS = {"documents": DocumentRows, "packed": PackedRows}


@dataclass(frozen=True)
class Text:
    """A text and how it is cut into rows.

    Attributes:
        source: as `selattn.data.documents` takes it.
        split: of the source.
        layout: "documents", one in each row as in the paper, or "packed".
        long: only documents that fill 90% of the context.
        seed: of the order of the rows.
        eos: whether documents end with </s>, as those of `selattn train` do.
        reading: how the source is read.
    """

    source: str
    split: str = "validation"
    layout: str = "documents"
    long: bool = False
    seed: int = 0
    eos: bool = True
    reading: Reading = field(default_factory=Reading)

    def rows(self, tokenizer: Tokenizer, context: int, progress: bool = False) -> TextRows:
        """The rows of N tokens."""
        if self.layout not in LAYOUTS:
            raise SelattnError(f"unknown layout {self.layout!r}: choose {' or '.join(LAYOUTS)}")
        if self.long and self.layout == "packed":
            raise SelattnError("packed rows are all full: long examples are a matter of the layout 'documents'")
        store = store_for(self.source, tokenizer, self.split, self.reading, self.eos, progress=progress)
        return TextRows(LAYOUTS[self.layout](store, context), self.seed, self.long)


def text_names(sources: Sequence[str]) -> dict[str, str]:
    """A short name for each source, for tables: a file's own name unless two have the same."""
    files = {source: Path(source).name if Path(source).exists() else source for source in sources}
    names = list(files.values())
    return {source: name if names.count(name) == 1 else source for source, name in files.items()}


class TextRows:
    """Rows in an order that depends on the seed alone. The long ones keep their order among all of them.

    So the first n long rows contain all the long ones among the first n rows: who leaves out the first n has not seen
    what a search on n rows has seen, whether that search was on long rows or on all.
    """

    def __init__(self, rows: DocumentRows | PackedRows, seed: int, long: bool = False) -> None:
        self._rows, self._seed = rows, seed
        self._long: list[int] | None = None
        if long:
            lengths, least = np.diff(rows.store.offsets), math.ceil(LONG * rows.context)
            order = (shuffled(place, len(rows), seed, 0) for place in range(len(rows)))
            self._long = [row for row in order if lengths[row] >= least]
            if not self._long:
                raise SelattnError(f"{rows.store.meta['source']} has no document of {least} tokens or more")

    def __len__(self) -> int:
        return len(self._rows) if self._long is None else len(self._long)

    @property
    def checksum(self) -> str:
        """Of the tokens that the rows are cut from."""
        return self._rows.store.meta["checksums"]["tokens.bin"]

    def take(self, count: int | None = None, skip: int = 0) -> Sequence[dict[str, Tensor]]:
        """`count` rows after the first `skip`; None for all of them."""
        end = len(self) if count is None else skip + count
        if skip < 0 or not skip < end <= len(self):
            wanted = "more" if count is None else count
            raise SelattnError(
                f"{self._rows.store.meta['source']} has {len(self)} rows, and {wanted} after the first {skip} were "
                "asked for: ask for fewer, or give more text"
            )
        return [self._rows[self._row(place)] for place in range(skip, end)]

    def _row(self, place: int) -> int:
        return shuffled(place, len(self._rows), self._seed, 0) if self._long is None else self._long[place]
