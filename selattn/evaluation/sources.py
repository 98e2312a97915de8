"""Which of the settings for reading text matter to a source."""

from __future__ import annotations

from pathlib import Path

from selattn.data.files import find_files, named_splits
from selattn.data.hub import hub_source
from selattn.data.text import EMBEDDED

READING = ("column", "separator", "validation")


def settings_of(source: str) -> set[str]:
    """Which of `READING` change what is read from a source; all of them if there is no such source."""
    if hub_source(source) is not None:
        return {"column"}
    if source == EMBEDDED:
        return {"validation"}
    path = Path(source).expanduser()
    if not source or not path.exists():
        return set(READING)
    files = find_files(path)
    plain = [file.name.lower().removesuffix(".gz").endswith(".txt") for file in files]
    found = {"separator"} if any(plain) else set()
    if not all(plain):
        found.add("column")
    if not path.is_dir() or named_splits(path, files) is None:
        found.add("validation")
    return found
