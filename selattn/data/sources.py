"""From the name of a source to its documents: files and folders, datasets of the Hugging Face hub, embedded text.

The hub is read as a stream: nothing is downloaded that is not used. The embedded text is what every Python has, its
language reference (`pydoc_data`) and the docstrings of the standard library: no network, no download. The quick
examples train on it. Modules are parsed, never imported.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import platform
import socket
import sysconfig
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
from huggingface_hub import constants

from selattn.data.draws import mix
from selattn.data.files import find_files, join_articles, named_splits, read_file, text_of
from selattn.errors import SelattnError, UnknownSourceError, advice, require, shortened

EMBEDDED, PREFIX = "embedded", "hub:"
SPLITS = ("train", "validation", "test")
_T = TypeVar("_T")

# Left out of the embedded text, as no documentation of the library: its own tests, an editor, a converter with Python 2
# in it, tables of characters, what the user installed, and the reference itself, which is read as topics.
_SKIPPED = {"test", "tests", "idle_test", "idlelib", "lib2to3", "encodings", "site-packages", "dist-packages"}
_SKIPPED |= {"__pycache__", "pydoc_data", "turtledemo"}


@dataclass(frozen=True)
class Reading:
    """How a source is read; each setting matters only where it applies.

    Args:
        column: where `.jsonl` files and the hub have the text.
        separator: what ends a document in a `.txt` file: "blank" (a blank line), "line" (each line is one), "single"
            (a line end, where blank lines stand between the paragraphs of a document), "file" (each file is one),
            "article" (WikiText's ` = Title = ` begins one), or else the line that stands between two documents, such
            as "<|endoftext|>".
        validation: the fraction of documents that is held out where the source itself has no validation part.
        limit: the most documents that are read of the split; None for all.
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
    settings = {"separator" if ".txt" in file.name.lower() else "column" for file in files}
    return settings if path.is_dir() and named_splits(path, files) else settings | {"validation"}


def documents(source: str | Path, split: str = "train", reading: Reading | None = None) -> Iterator[str]:
    """The documents of a source, always in the same order; blank ones are left out.

    Where a source has no validation part of its own, documents are held out by their index. A held-out document whose
    text is also among the training documents is skipped.

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
    """A description that changes when the text of a source does, without reading it: the keys of the cache have it."""
    source = str(source)
    if source == EMBEDDED:
        return {"embedded": platform.python_version()}
    hub = hub_source(source)
    if hub is not None:
        return {"hub": hub.path, "config": hub.config, "revision": hub.revision}
    files = [(file, file.stat()) for file in find_files(_path(source))]
    return {"files": [[str(file.resolve()), stat.st_size, stat.st_mtime_ns] for file, stat in files]}


def name_of(source: str | Path) -> str:
    """The name of a source, the same for every spelling."""
    source = str(source)
    if source == EMBEDDED:
        return source
    hub = hub_source(source)
    if hub is not None:
        return hub.path if hub.config is None else f"{hub.path}:{hub.config}"
    return str(_path(source, missing=True).resolve())  # a text that was moved keeps the name it had


def division(source: str | Path, split: str) -> str:
    """The rule that puts documents into a split, where the identity does not tell it or it has changed; or ""."""
    source = str(source)
    if hub_source(source) is not None:
        return ""
    if source != EMBEDDED and _named_splits(source) is not None:
        return "by the names of the files"
    return "held out, without copies of training documents" if split == "validation" else ""


def is_validation(index: int, fraction: float) -> bool:
    """Whether document `index` is held out, by a hash: more documents never move the earlier ones."""
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
    # Sorted, and eight bytes for each text: a corpus need not fit into memory.
    training = map(_hash, _side(source, "train", reading) if split == "validation" else ())
    trained = np.unique(np.frombuffer(array("Q", training), np.uint64))
    kept = copies = 0
    for text in _side(source, split, reading):
        value = np.uint64(_hash(text))
        place = int(np.searchsorted(trained, value))
        if place < len(trained) and trained[place] == value:
            copies += 1
        else:
            kept += 1
            yield text
    if not kept:
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
    """The documents of one split of a source that is divided by `is_validation`, copies included."""
    held_out = split == "validation"
    numbered = enumerate(_everything(source, reading))
    return islice((t for i, t in numbered if is_validation(i, reading.validation) == held_out), reading.limit)


def _read(files: Iterable[Path], reading: Reading) -> Iterator[str]:
    return (text for file in files for text in read_file(file, reading.column, reading.separator))


def _named_splits(source: str) -> dict[str, list[Path]] | None:
    path = _path(source)
    return named_splits(path, find_files(path)) if path.is_dir() else None


def _hash(text: str) -> int:
    """Documents that differ only in blanks at their ends have the same."""
    return int.from_bytes(hashlib.blake2b(text.strip().encode(), digest_size=8).digest())


def _path(source: str, missing: bool = False) -> Path:
    """The path that a source names, or an error that tells a mistyped name from a missing file; `missing` allows it."""
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


# ---- the hub ----


@dataclass(frozen=True)
class HubSource:
    """Where a dataset of the hub lives."""

    path: str  # owner and name
    config: str | None = None
    revision: str | None = None
    splits: dict[str, str] = field(default_factory=dict)  # our names of splits to its, where they differ
    lines: bool = False  # whether rows are lines of articles, to be joined


NAMED = {
    "c4": HubSource("allenai/c4", "en"),
    "wikitext": HubSource("Salesforce/wikitext", "wikitext-103-raw-v1", lines=True),
    # The repository holds a loading script, which `datasets` no longer runs; the hub's own conversion of it is data
    # only. lm1b has no validation part: its held-out part is called test.
    "lm1b": HubSource("billion-word-benchmark/lm1b", None, "refs/convert/parquet", {"validation": "test"}),
}


def hub_source(source: str) -> HubSource | None:
    """`c4`, `wikitext`, `lm1b`, each also with `:CONFIG` behind it, or `hub:OWNER/NAME[:CONFIG]`; None for no such."""
    if source.startswith(PREFIX):
        path, _, config = source.removeprefix(PREFIX).partition(":")
        if not path.strip("/ "):
            raise SelattnError(f"{shortened(source)!r} names no dataset: write {PREFIX}OWNER/NAME, as the hub has it")
        return HubSource(path, config or None)
    name, _, config = source.partition(":")
    known = NAMED.get(name)
    return known if known is None or not config else replace(known, config=config)


def read_hub(source: HubSource, split: str, column: str) -> Iterator[str]:
    """The documents of a split that are not blank, in the hub's order."""
    rows = _loading(source, lambda: _load(source, source.splits.get(split, split)))
    texts = (text_of(row, column, source.path) for row in _guarded(source, rows))
    documents = join_articles(texts) if source.lines else texts
    return (document for document in documents if document.strip())


def _load(source: HubSource, split: str) -> Iterable[dict[str, Any]]:
    require("datasets")
    import datasets

    if _offline():  # else it would retry for half a minute, with a warning each time; its cache is read all the same
        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    return datasets.load_dataset(source.path, source.config, split=split, revision=source.revision, streaming=True)


def _offline() -> bool:
    """Whether the hub has no address here; a proxy may know it all the same."""
    try:
        getproxies() or socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
    except OSError:
        return True
    return False


def _guarded(source: HubSource, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A stream can fail at any row, not only at its beginning."""
    stream = iter(rows)
    end: dict[str, Any] = {}
    while (row := _loading(source, lambda: next(stream, end))) is not end:
        yield row


def _loading(source: HubSource, load: Callable[[], _T]) -> _T:
    """One line for a hub that fails: no network, no such dataset (both OSError), configuration or split."""
    try:
        return load()
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, SelattnError):
            raise
        reason = shortened(" ".join(str(error).split()), 400)
        raise SelattnError(
            f"cannot read {shortened(source.path)} from the Hugging Face hub: {reason}; "
            "a local file or folder works offline"
        ) from error


# ---- the embedded text ----


def embedded_documents() -> Iterator[str]:
    """One document for each topic of the reference, then one for each module that has docstrings, sorted by name."""
    from pydoc_data.topics import topics

    yield from (text.strip() for _, text in sorted(topics.items()))
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if not _SKIPPED & set(place.parts):
            module = ".".join(place.with_suffix("").parts).removesuffix(".__init__")
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, OSError):
                continue  # some installations keep files that are not Python 3, or cannot be read
            if text := "\n\n".join(_docstrings(tree, f"module {module}")):
                yield text


def _docstrings(node: Any, title: str) -> Iterator[str]:
    """The docstrings of a module or class and of all inside, each below the first line of what it documents."""
    docstring = ast.get_docstring(node, clean=False)
    if docstring and docstring.strip():
        # Surrogates occur in a few docstrings, and no encoding has them.
        text = inspect.cleandoc(docstring).encode("utf-8", "replace").decode("utf-8")
        yield f"{title}\n{text}"
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            yield from _docstrings(child, f"class {child.name}")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(child, f"def {child.name}({ast.unparse(child.args)})")
