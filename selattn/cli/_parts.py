"""What the two forms of `selattn eval` have in common: parts that are measured once, and what they depend on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from selattn.evaluate.parts import Key, Parts
    from selattn.evaluate.team import Team
    from selattn.evaluate.text import Text, TextRows


@contextmanager
def kept_parts(record: Path | None, keys: Sequence[Key], team: Team, console: Console) -> Iterator[Parts]:
    """The parts of an evaluation that consists of these, after a line that says how many of them are there."""
    from selattn.evaluate.parts import open_parts

    with open_parts(record, team) as parts:
        known = parts.known(keys)
        if known:
            console.print(f"{known} of {len(keys)} parts were measured before")
        yield parts


def text_key(text: Text, rows: TextRows) -> dict[str, Any]:
    """What the rows of a text depend on."""
    import dataclasses

    return {"text": dataclasses.asdict(text), "tokens": rows.checksum}
