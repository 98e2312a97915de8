"""From the name of a source to its documents."""

from __future__ import annotations

import hashlib
import platform
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selattn.data.draws import mix
from selattn.data.embedded import embedded_documents
from selattn.data.files import find_files, named_splits, read_file
from selattn.data.hub import NAMED, hub_source, read_hub
from selattn.errors import SelattnError, UnknownSourceError, advice, shortened

EMBEDDED = "embedded"
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Reading:
    """How a source is read. Each setting matters only where it applies.

    Args:
        column: where `.jsonl` files and the hub have the text.
        separator: what ends a document in a `.txt` file: "blank" (a blank line), "line" (each line is one), "single"
            (a line end, where blank lines stand between the paragraphs of a document), "file" (each file is one),
            "article" (WikiText's ` = Title = ` begins one), or else the line that stands between two documents, such
            as "<|endoftext|>".
        validation: the fraction of documents that is held out where the source itself has no validation part.
        limit: read at most so many documents of the split.
    """

    column: str = "text"
    separator: str = "blank"
    validation: float = 0.02
    limit: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.validation <= 1.0:
            raise SelattnError(f"the validation fraction must be in [0, 1], not {self.validation}")
        if self.limit is not None and self.limit < 1:
            raise SelattnError(f"limit must be at least 1 document, not {self.limit}")


def settings_of(source: str) -> set[str]:
    """Which of column, separator and validation a source heeds; all of them if there is no such source."""
    if hub_source(source) is not None:
        return {"column"}
    if source == EMBEDDED:
        return {"validation"}
    path = Path(source).expanduser()
    if not source or not path.exists():
        return {"column", "separator", "validation"}
    files = find_files(path)
    plain = [file.name.lower().removesuffix(".gz").endswith(".txt") for file in files]
    found = {"separator"} if any(plain) else set()
    if not all(plain):
        found.add("column")
    if not path.is_dir() or named_splits(path, files) is None:
        found.add("validation")
    return found


def documents(source: str | Path, split: str = "train", reading: Reading | None = None) -> Iterator[str]:
    """The documents of a source, always in the same order; blank ones are left out.

    Where a source has no validation part of its own, documents are held out by their index. A held-out one whose text
    also stands among the training documents is left out.

    Args:
        source: `c4`, `wikitext` or `lm1b` (also with a configuration, `wikitext:wikitext-2-raw-v1`), any other dataset
            of the hub as `hub:OWNER/NAME`, a file or folder of `.txt`, `.jsonl` and `.gz`, or `embedded`.
        split: "train", "validation", or "test" where the source has one.
        reading: the settings; None for the defaults.
    """
    reading = reading or Reading()
    if split not in SPLITS:
        raise SelattnError(f"unknown split {split!r}; {advice(split, SPLITS)}")
    return islice(_documents(str(source), split, reading), reading.limit)


def identity(source: str | Path) -> dict[str, Any]:
    """What has to be the same for a source to have the same text, as far as that is known without reading it."""
    source = str(source)
    if source == EMBEDDED:
        return {"embedded": platform.python_version()}
    hub = hub_source(source)
    if hub is not None:
        return {"hub": hub.path, "config": hub.config, "revision": hub.revision}
    files = [(file, file.stat()) for file in find_files(_path(source))]
    return {"files": [[str(file.resolve()), stat.st_size, stat.st_mtime_ns] for file, stat in files]}


def name_of(source: str | Path) -> str:
    """What a source is called, however it was spelled: sources with one identity have one name."""
    source = str(source)
    if source == EMBEDDED:
        return source
    hub = hub_source(source)
    if hub is not None:
        return hub.path if hub.config is None else f"{hub.path}:{hub.config}"
    return str(_path(source, missing=True).resolve())  # a text that was moved keeps the name it had


def division(source: str | Path, split: str) -> str:
    """By which rule documents come into a split, where that has changed or cannot be told from the identity; or ""."""
    source = str(source)
    if hub_source(source) is not None:
        return ""
    if source != EMBEDDED and _named_splits(source) is not None:
        return "by the names of the files"
    return "held out, without copies of training documents" if split == "validation" else ""


def is_validation(index: int, fraction: float) -> bool:
    """Whether document `index` is held out: a hash of the index, so that more documents never move the earlier ones."""
    return mix(index + 1) < fraction * 2**64


def _documents(source: str, split: str, reading: Reading) -> Iterator[str]:
    hub = hub_source(source)
    if hub is not None:
        yield from read_hub(hub, split, reading.column)
        return
    splits = None if source == EMBEDDED else _named_splits(source)
    if splits is not None:
        if split not in splits:
            there = ", ".join(sorted(splits))
            raise SelattnError(f"{shortened(source)} has no files for the split {split!r}; there are {there}")
        yield from _read(splits[split], reading)
        return
    if split == "test":
        raise SelattnError(f"{shortened(source)} has no test split: ask for train or validation")
    trained = _hashes(_side(source, "train", reading)) if split == "validation" else _hashes([])
    found = copies = 0
    for text in _side(source, split, reading):
        if _among(_hash(text), trained):
            copies += 1
        else:
            found += 1
            yield text
    if not found:
        count = sum(1 for _ in _everything(source, reading))
        left_out = f", and those are copies of training documents ({copies})" if copies else ""
        raise SelattnError(
            f"{shortened(source)} has no document for the split {split!r}: {count} in all, of which "
            f"{reading.validation:.0%} are held out{left_out}; set another validation fraction (--validation, "
            "data.validation) or separator"
        )


def _everything(source: str, reading: Reading) -> Iterator[str]:
    return embedded_documents() if source == EMBEDDED else _read(find_files(_path(source)), reading)


def _side(source: str, split: str, reading: Reading) -> Iterator[str]:
    """The documents on one side of a source that we split ourselves, copies included."""
    numbered = enumerate(_everything(source, reading))
    held_out = split == "validation"
    return islice((t for i, t in numbered if is_validation(i, reading.validation) == held_out), reading.limit)


def _read(files: Iterable[Path], reading: Reading) -> Iterator[str]:
    return (text for file in files for text in read_file(file, reading.column, reading.separator))


def _named_splits(source: str) -> dict[str, list[Path]] | None:
    path = _path(source)
    return named_splits(path, find_files(path)) if path.is_dir() else None


def _hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Sorted, and eight bytes for each text: a corpus need not fit into memory."""
    return np.unique(np.frombuffer(array("Q", map(_hash, texts)), np.uint64))


def _hash(text: str) -> int:
    """The same for documents that differ only in blanks at their ends."""
    return int.from_bytes(hashlib.blake2b(text.strip().encode(), digest_size=8).digest())


def _among(value: int, values: NDArray[np.uint64]) -> bool:
    place = int(np.searchsorted(values, np.uint64(value)))
    return place < len(values) and int(values[place]) == value


def _path(source: str, missing: bool = False) -> Path:
    """The path that a source names, or an error that tells a mistyped name from a missing file.

    missing: whether a path to nothing will do.
    """
    if not source:  # which would be the working directory
        raise SelattnError("the name of a text is empty: give a file, a folder, or a name of the hub's")
    try:
        path = Path(source).expanduser()
        there = path.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, a folder that is closed, no such ~user
        raise SelattnError(f"cannot read {shortened(source)}: {getattr(error, 'strerror', None) or error}") from None
    if not there and path.name == source and not path.suffix:
        known = advice(source.lower(), [EMBEDDED, *NAMED])
        raise UnknownSourceError(f"unknown source {source!r} (no file or folder either); {known}")
    if not there and not missing:
        raise UnknownSourceError(f"no such file or folder: {path}")
    return path
