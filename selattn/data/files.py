"""Local files to documents: `.txt`, `.jsonl` (or `.json` that holds one object in each line), and `.gz` of these."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any

from selattn.errors import SelattnError

KINDS = (".txt", ".jsonl", ".json")
_LONE = re.compile("[\ud800-\udfff]")  # JSON can write these, and no encoding has them
_BOM = b"\xef\xbb\xbf"
# WikiText's own mark of a new article: ` = Title = `, where sections have two or more of the signs.
_TITLE = re.compile(r"\s*= [^=].* =\s*")
_SPLITS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation"}
_SPLITS |= {"dev": "validation", "test": "test"}
_SPLIT_NAME = re.compile(rf"(?:^|[-._/ ])({'|'.join(_SPLITS)})(?=[-._/ \d]|$)", re.IGNORECASE)


def find_files(path: Path) -> list[Path]:
    """The file itself, or all readable files below a folder, in the order of their names."""
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.is_file() and _kind(file) and file.name[0] != ".")
        if not found:
            raise SelattnError(f"no .txt, .jsonl or .gz file in the folder {path}")
    elif not path.exists():
        raise SelattnError(f"no such file or folder: {path}")
    elif not _kind(path):
        raise SelattnError(f"cannot read {path}: it must be .txt or .jsonl, or .gz of these; rename it if it is one")
    else:
        found = [path]
    for file in found:
        if file.stat().st_size == 0:
            raise SelattnError(f"{file} is empty")
    return found


def named_splits(folder: Path, files: list[Path]) -> dict[str, list[Path]] | None:
    """The files of each split, if their names tell it (`train.txt`, `c4-validation.00000-of-00008.json.gz`).

    None if no file is named for training, or none for anything else: then the documents have to be split.
    """
    splits: dict[str, list[Path]] = {}
    for file in files:
        names = _SPLIT_NAME.findall(file.relative_to(folder).as_posix())
        splits.setdefault(_SPLITS[names[-1].lower()] if names else "", []).append(file)
    if "train" not in splits or not splits.keys() & {"validation", "test"}:
        return None
    if "" in splits:
        raise SelattnError(
            f"{folder} has files named for a split and others, such as {splits[''][0].name}: "
            "move those away, or name the files to be read"
        )
    return splits


def read_file(path: Path, column: str, separator: str) -> Iterator[str]:
    """The documents of one file that are not blank; a file without any is an error."""
    if _kind(path) == ".txt":
        documents = _split(_lines(path), separator)
    else:
        documents = (text_of(row, column, where) for where, row in read_objects(path))
    empty = True
    for document in documents:
        if document.strip():
            empty = False
            yield document
    if empty:
        raise SelattnError(f"{path} holds no text")


def read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file with one in each line, and where each stands, for messages."""
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise SelattnError(f"{path}, line {number}: not JSON ({error.msg}); each line must be one object") from None
        if not isinstance(row, dict):
            raise SelattnError(f"{path}, line {number}: a {type(row).__name__}; each line must be one object")
        yield f"{path}, line {number}", row


def join_articles(lines: Iterable[str]) -> Iterator[str]:
    """Whole articles from WikiText's lines. Formulas can look like a title, but have no blank lines around them."""
    article: list[str] = []
    before, here = "", None
    for after in chain(lines, [""]):
        if here is not None:
            if article and _TITLE.fullmatch(here) and not before.strip() and not after.strip():
                yield "\n".join(article).strip("\n")
                article = []
            article.append(here.rstrip("\n"))
            before = here
        here = after
    yield "\n".join(article).strip("\n")


def _kind(path: Path) -> str:
    """The suffix below a `.gz`, or "" for a file that cannot be read."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    last = suffixes[-2:-1] if suffixes[-1:] == [".gz"] else suffixes[-1:]
    return last[0] if last and last[0] in KINDS else ""


def _lines(path: Path) -> Iterator[str]:
    """Lines without their ends, decoded one by one so that a wrong byte can be named."""
    offset = 0
    try:
        with _open(path) as file:
            for raw in file:
                line = raw.removeprefix(_BOM) if offset == 0 else raw
                yield line.decode("utf-8").rstrip("\r\n")
                offset += len(raw)
    except UnicodeDecodeError as error:
        at = offset + error.start + (len(raw) - len(line))
        where = " of the unpacked text" if path.suffix == ".gz" else ""
        raise SelattnError(
            f"{path} is not UTF-8: byte {at}{where} is 0x{error.object[error.start]:02x}; convert it with iconv"
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SelattnError(f"{path} is damaged or not gzip: {error}") from None
    except OSError as error:
        raise SelattnError(f"cannot read {path}: {error.strerror or error}") from None


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def _split(lines: Iterable[str], separator: str) -> Iterator[str]:
    """Text to documents; a separator that is not one of the names is a line that stands between documents."""
    if separator == "line":
        yield from lines
    elif separator == "file":
        yield "\n".join(lines)
    elif separator == "article":
        yield from join_articles(lines)
    elif separator == "single":
        yield from _paragraphs_joined(lines)
    else:
        between = "" if separator == "blank" else separator
        document: list[str] = []
        for line in lines:
            if line.strip() == between:
                yield "\n".join(document)
                document = []
            else:
                document.append(line)
        yield "\n".join(document)


def _paragraphs_joined(lines: Iterable[str]) -> Iterator[str]:
    """Documents that end with a line, and have blank lines only between their paragraphs."""
    document: list[str] = []
    for line in lines:
        if line.strip() and document and document[-1].strip():
            yield "\n".join(document)
            document = []
        document.append(line)
    yield "\n".join(document)


def text_of(row: dict[str, object], column: str, where: str) -> str:
    """The text of a row, or an error that names the columns there are."""
    if column not in row:
        raise SelattnError(f"{where}: no column {column!r}; there are {', '.join(map(repr, row)) or 'none'}")
    text = row[column]
    if not isinstance(text, str):
        raise SelattnError(f"{where}: column {column!r} holds a {type(text).__name__}, not text")
    if not text.isascii() and _LONE.search(text):
        raise SelattnError(
            f"{where}: column {column!r} holds half a surrogate pair, which is no character: write it in UTF-8"
        )
    return text
