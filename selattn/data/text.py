"""From the name of a source to its documents."""

from __future__ import annotations

import difflib
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from selattn.data.draws import mix
from selattn.data.embedded import embedded_documents
from selattn.data.files import find_files, named_splits, read_file
from selattn.data.hub import NAMED, hub_source, read_hub
from selattn.errors import SelattnError

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


def documents(source: str | Path, split: str = "train", reading: Reading | None = None) -> Iterator[str]:
    """The documents of a source, always in the same order; blank ones are left out.

    Args:
        source: `c4`, `wikitext` or `lm1b` (also with a configuration, `wikitext:wikitext-2-raw-v1`), any other dataset
            of the hub as `hub:OWNER/NAME`, a file or folder of `.txt`, `.jsonl` and `.gz`, or `embedded`.
        split: "train", "validation", or "test" where the source has one.
        reading: the settings; None for the defaults.
    """
    reading = reading or Reading()
    if split not in SPLITS:
        raise SelattnError(f"unknown split {split!r}; {_nearest(split, SPLITS)}")
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


def is_validation(index: int, fraction: float) -> bool:
    """Whether document `index` is held out: a hash of the index, so that more documents never move the earlier ones."""
    return mix(index + 1) < fraction * 2**64


def _documents(source: str, split: str, reading: Reading) -> Iterator[str]:
    hub = hub_source(source)
    if hub is not None:
        yield from read_hub(hub, split, reading.column)
        return
    if source == EMBEDDED:
        everything = embedded_documents()
    else:
        path = _path(source)
        files = find_files(path)
        splits = named_splits(path, files) if path.is_dir() else None
        if splits is not None and split not in splits:
            raise SelattnError(f"{path} has no files for the split {split!r}; there are {', '.join(sorted(splits))}")
        chosen = files if splits is None else splits[split]
        everything = (text for file in chosen for text in read_file(file, reading.column, reading.separator))
        if splits is not None:
            yield from everything
            return
    if split == "test":
        raise SelattnError(f"{source} has no test split: ask for train or validation")
    held_out = split == "validation"
    count = found = 0
    for index, text in enumerate(everything):
        count += 1
        if is_validation(index, reading.validation) == held_out:
            found += 1
            yield text
    if not found:
        raise SelattnError(
            f"{source} has no document for the split {split!r}: {count} in all, of which "
            f"{reading.validation:.0%} are held out; set another validation fraction or separator"
        )


def _path(source: str) -> Path:
    """The path that a source names, or an error that tells a mistyped name from a missing file."""
    path = Path(source).expanduser()
    if not path.exists() and path.name == source and not path.suffix:
        advice = _nearest(source.lower(), [EMBEDDED, *NAMED])
        raise SelattnError(f"unknown source {source!r} (no file or folder either); {advice}")
    return path


def _nearest(word: str, known: tuple[str, ...] | list[str]) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
