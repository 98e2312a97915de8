"""What the two forms of `selattn eval` have in common: parts that are measured once, and what they depend on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from selattn.evaluation.parts import Key, Parts
    from selattn.evaluation.text import Searched, Text, TextRows
    from selattn.utils.distributed import Team


@contextmanager
def kept_parts(record: Path | None, keys: Sequence[Key], team: Team, console: Console) -> Iterator[Parts]:
    """The parts of an evaluation that consists of these, after a line that says how many of them are there."""
    from selattn.evaluation.parts import open_parts

    with open_parts(record, team) as parts:
        known = parts.known(keys)
        if known:
            console.print(f"{known} of {len(keys)} parts were measured before")
        yield parts


def write_whole(record: Path, data: dict[str, Any], seed: int) -> None:
    """The record; if it cannot be written, what was measured is not lost."""
    from selattn.errors import SelattnError
    from selattn.utils.records import write_record

    try:
        write_record(record, data, seed)
    except SelattnError as error:
        raise SelattnError(f"{error}; what was measured is kept beside it, and the same command goes on") from None


def text_key(text: Text, rows: TextRows, count: int | None, skip: int | Searched) -> dict[str, Any]:
    """What the rows that are taken of a text depend on, and which those are."""
    import dataclasses
    import hashlib

    taken = hashlib.blake2b(str(rows.numbers(count, skip)).encode(), digest_size=8).hexdigest()
    return {"text": dataclasses.asdict(text), "tokens": rows.checksum, "taken": taken}
