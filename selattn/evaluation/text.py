"""Text to evaluate on: rows in a fixed order, of which a search and its report take different ones."""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from selattn.data import DocumentRows, PackedRows, Reading, Tokenizer, TokenStore, store_for
from selattn.data.draws import shuffled
from selattn.data.store import label
from selattn.errors import SelattnError
from selattn.utils.typed import to_json

LONG = Fraction(9, 10)  # of the context: what the paper calls very long examples
LAYOUTS: dict[str, type[DocumentRows] | type[PackedRows]] = {"documents": DocumentRows, "packed": PackedRows}


@dataclass(frozen=True)
class Text:
    """A text and how it is cut into rows."""

    source: str  # as `selattn.data.documents` takes it
    split: str = "validation"
    layout: str = "documents"  # one in each row, as in the paper; or "packed"
    long: bool = False  # only documents that fill 90% of the context
    seed: int = 0  # of the order of the rows
    eos: bool = True  # documents end with </s>, as those of `selattn train` do
    reading: Reading = field(default_factory=Reading)

    def rows(self, tokenizer: Tokenizer, context: int, progress: bool = False) -> TextRows:
        """The rows of N tokens."""
        self._check()
        return self.cut(self.store(tokenizer, progress), context)

    def store(self, tokenizer: Tokenizer, progress: bool = False) -> TokenStore:
        """Its tokens, which are made first if the cache has none."""
        return store_for(self.source, tokenizer, self.split, self.reading, self.eos, progress=progress)

    def cut(self, store: TokenStore, context: int) -> TextRows:
        """The rows of N tokens of a store that holds this text."""
        self._check()
        return TextRows(LAYOUTS[self.layout](store, context), self.seed, self.long)

    def _check(self) -> None:
        if self.layout not in LAYOUTS:
            raise SelattnError(f"unknown layout {self.layout!r}: choose {' or '.join(LAYOUTS)}")
        if self.long and self.layout == "packed":
            raise SelattnError("packed rows are all full: long examples are a matter of the layout 'documents'")


@dataclass(frozen=True)
class Searched:
    """The rows that a search has seen: a report leaves them out, whatever its own rows are."""

    text: Text
    context: int
    rows: int  # the first of the text
    tokens: str  # checksum of the text's tokens
    folder: str = ""  # of the search, for records

    def spans(self, store: TokenStore) -> list[tuple[int, int]]:
        """The tokens of the store that were seen, as [start, stop) in order; empty if it holds another text."""
        if store.checksum == self.tokens:
            return self.text.cut(store, self.context).spans(self.rows)
        if self._is_of(store):
            raise SelattnError(
                f"{store.name} has other tokens now than when it was searched on, or the models have different "
                "tokenizers: what was seen cannot be told; leave out a number of rows instead"
            )
        return []

    def _is_of(self, store: TokenStore) -> bool:
        """Whether a store has the name of the text; one that is no longer there has another."""
        with contextlib.suppress(SelattnError):
            return store.name == label(self.text.source, self.text.split)
        return False


Data = str | Path | Text | Sequence[str | Path | Text] | Mapping[str, Text]


def named_texts(data: Data) -> dict[str, Text]:
    """Texts by the name that tables give them: the source, or a file's own name, with ", long" for long documents."""
    if isinstance(data, Mapping):
        return dict(data)
    listed = [data] if isinstance(data, str | Path | Text) else data
    texts = [each if isinstance(each, Text) else Text(str(each)) for each in listed]
    names = text_names([text.source for text in texts])
    return {names[text.source] + (", long" if text.long else ""): text for text in texts}


def text_key(text: Text, rows: TextRows, count: int | None, skip: int | Searched) -> dict[str, Any]:
    """The part of a key that says which rows of a text are taken, and what they depend on."""
    taken = hashlib.blake2b(str(rows.numbers(count, skip)).encode(), digest_size=8).hexdigest()
    return {"text": to_json(text), "tokens": rows.checksum, "taken": taken}


def skip_name(skip: int | Searched) -> int | str:
    """The rows that are left out, for a record."""
    return skip if isinstance(skip, int) else skip.folder


def text_names(sources: Sequence[str]) -> dict[str, str]:
    """A short name for each source, for tables: a file's own name unless two have the same."""
    files = {source: Path(source).name if Path(source).exists() else source for source in sources}
    names = list(files.values())
    return {source: name if names.count(name) == 1 else source for source, name in files.items()}


class TextRows:
    """Rows in an order that depends on the seed alone. The long ones keep their order among all of them.

    `take(skip=n)` leaves out every row that a search on n rows may have seen: the first n of all, and the first n of
    those that are long at this context or at a smaller one. So at the context size of a model one number serves every
    search with that model, and a report on long rows or on all. A search with another layout or seed, or at a larger
    context, has other rows: then it has to be said which search it was.
    """

    def __init__(self, rows: DocumentRows | PackedRows, seed: int, long: bool = False) -> None:
        self._rows, self._seed = rows, seed
        # Tokens of each document, at most `filled`: beyond that all count as equally long. Packed rows are full.
        filled = math.ceil(LONG * rows.context)
        lengths = np.diff(rows.store.offsets) if isinstance(rows, DocumentRows) else np.full(len(rows), filled)
        self._lengths = np.minimum(lengths, filled)
        self._least = filled if long else 0
        self._size = int((self._lengths >= self._least).sum())
        if not self._size:
            raise SelattnError(f"{rows.store.name} has no document of {filled} tokens or more")

    def __len__(self) -> int:
        return self._size

    @property
    def checksum(self) -> str:
        """The checksum of the text's tokens."""
        return self._rows.store.checksum

    def take(self, count: int | None = None, skip: int | Searched = 0) -> Sequence[dict[str, Tensor]]:
        """`count` rows, or all if that is None, without those that a search has seen.

        `skip` is how many rows the search had; or the search itself, then exactly the rows that share a token with it
        are left out.
        """
        return [self._rows[row] for row in self.numbers(count, skip)]

    def numbers(self, count: int | None = None, skip: int | Searched = 0) -> list[int]:
        """The numbers, in the layout's order, of the rows that `take` returns."""
        left = self._unseen(skip) if isinstance(skip, int) else self._outside(skip.spans(self._rows.store))
        found = list(left if count is None else islice(left, max(count, 0)))
        if not found or len(found) < (count or 0) or (isinstance(skip, int) and skip < 0):
            wanted = "more" if count is None else count
            after = f"the first {skip}" if isinstance(skip, int) else f"the {skip.rows} of a search"
            raise SelattnError(
                f"{self._rows.store.name} has {len(self)} rows, and {wanted} after {after} were asked for "
                f"({len(found)} are left): ask for fewer, give more text, or hold more of it out (--validation 1: all)"
            )
        return found

    def spans(self, count: int) -> list[tuple[int, int]]:
        """The tokens of the store that the first `count` rows are cut from, as [start, stop) in order."""
        return sorted(self._span(row) for row in self.numbers(count))

    def _order(self) -> Iterator[int]:
        return (shuffled(place, len(self._rows), self._seed, 0) for place in range(len(self._rows)))

    def _unseen(self, searched: int) -> Iterator[int]:
        """The rows that no search on `searched` rows can have seen.

        A search takes the first rows that are long enough for it. So it can only have seen a row before which fewer
        than `searched` rows are at least as long: `longest` is a heap of the greatest lengths so far.
        """
        longest: list[int] = []
        for row in self._order():
            length = int(self._lengths[row])
            if len(longest) < searched:
                heapq.heappush(longest, length)
            elif longest and length > longest[0]:
                heapq.heapreplace(longest, length)
            elif length >= self._least:
                yield row

    def _outside(self, spans: Sequence[tuple[int, int]]) -> Iterator[int]:
        """The rows without a token of these spans, which are in order and do not overlap."""
        starts = [start for start, _ in spans]
        for row in self._order():
            start, stop = self._span(row)
            before = bisect.bisect_left(starts, stop)  # the number of spans that begin before the row ends
            seen = before > 0 and spans[before - 1][1] > start
            if not seen and self._lengths[row] >= self._least:
                yield row

    def _span(self, row: int) -> tuple[int, int]:
        """The tokens of a row in the store. The last token of a packed row has no loss there; it begins the next."""
        context = self._rows.context
        if isinstance(self._rows, PackedRows):
            return row * (context - 1), (row + 1) * (context - 1)
        start, stop = (int(at) for at in self._rows.store.offsets[row : row + 2])
        return start, min(stop, start + context)
