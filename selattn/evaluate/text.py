"""Text to evaluate on: rows in a fixed order, of which a search and its report take different ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from selattn.data import DocumentRows, PackedRows, Reading, Tokenizer, store_for
from selattn.data.draws import shuffled
from selattn.errors import SelattnError

LONG = 0.9  # of the context: what the paper calls very long examples
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
        store = store_for(self.source, tokenizer, self.split, self.reading, self.eos, progress=progress)
        if self.layout == "packed":
            if self.long:
                raise SelattnError("packed rows are all full: long examples are a matter of the layout 'documents'")
            return TextRows(PackedRows(store, context), self.seed)
        return TextRows(DocumentRows(store, context, int(LONG * context) if self.long else 0), self.seed)

    @property
    def name(self) -> str:
        """Short, for tables."""
        return self.source if not Path(self.source).exists() else Path(self.source).name


class TextRows:
    """Rows in an order that depends on the seed alone."""

    def __init__(self, rows: DocumentRows | PackedRows, seed: int) -> None:
        self._rows, self._seed = rows, seed

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def checksum(self) -> str:
        """Of the tokens that the rows are cut from."""
        return self._rows.store.meta["checksums"]["tokens.bin"]

    def take(self, count: int | None = None, skip: int = 0) -> Sequence[dict[str, Tensor]]:
        """`count` rows after the first `skip`; None for all of them."""
        end = len(self) if count is None else skip + count
        if end > len(self) or end <= skip:
            raise SelattnError(
                f"{self._rows.store.meta['source']} has {len(self)} rows, and {end - skip} after the first {skip} were "
                "asked for: ask for fewer, or give more text"
            )
        return [self._rows[shuffled(place, len(self), self._seed, 0)] for place in range(skip, end)]
