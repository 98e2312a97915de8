"""Broad English text from many sources, split by document: `python -m lab mixture SOURCE ... --out FOLDER`.

A source is NAME=PATH, or a folder whose files are sources named after themselves. What is written:

    FOLDER/mixture/{train,validation,test}.jsonl.gz  the text to train on (`--source FOLDER/mixture`)
    FOLDER/search.jsonl.gz                           documents that budgets are searched on
    FOLDER/parts/NAME.{validation,test}.jsonl.gz     the same held-out documents, source by source
    FOLDER/unseen/NAME.jsonl.gz                      sources of which no document is trained on
    FOLDER/counts.json                               documents, characters and checksums of every file

The rules:

- The chapters of a book stay together: documents with an `author` are one group for each title before its last comma.
- The groups of a source are ordered by a hash of their first document. Test, validation and search take groups from
  the front until each has 1.5% of the source's characters or 200,000, whichever is more, but never more than 8%.
- A document is a near-duplicate if half of its sampled runs of 8 words stand in documents before it; it is left out.
  Unseen sources come first, then test, validation and search, then training, so that training loses the copies.
- `--share NAME=X` trains on the first documents of a source, in their hashed order, as long as they are at most that
  share of the training characters.
- Documents are interleaved: the i-th of n groups of a source stands at (i + 1/2) / n, so that every stretch has all.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selattn.cli._options import Parser
from selattn.data.files import find_files, read_file, read_objects
from selattn.errors import SelattnError
from selattn.utils.files import folders_for, write_json

HELD_OUT = ("test", "validation", "search")
LEAST, SHARE, MOST = 200_000, 0.015, 0.08  # characters of a held-out part, and shares of its source
WORDS, SAMPLED = 8, 8  # words of a shingle; one shingle in SAMPLED is compared
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Document:
    """A text and where it is from."""

    source: str
    title: str
    text: str

    @property
    def place(self) -> str:
        """A hash that orders the documents of a source."""
        return hashlib.blake2b(f"{self.title}\n{self.text}".encode(), digest_size=8).hexdigest()


@dataclass
class Group:
    """Documents that stay together, in their order."""

    documents: list[Document] = field(default_factory=list)

    @property
    def characters(self) -> int:
        """In all of them."""
        return sum(len(each.text) for each in self.documents)


class Copies:
    """Recognises near-duplicates of the documents it has been shown."""

    def __init__(self) -> None:
        self._words: dict[str, int] = {}
        self._seen: set[int] = set()

    def fresh(self, text: str) -> bool:
        """Whether fewer than half of the sampled shingles were in earlier texts; if so the text counts as seen."""
        shingles = self._shingles(text).tolist()
        if sum(each in self._seen for each in shingles) * 2 >= max(1, len(shingles)):
            return False
        self._seen.update(shingles)
        return True

    def _shingles(self, text: str) -> NDArray[np.uint64]:
        words = [self._word(word) for word in _WORD.findall(text.lower())]
        values = np.array(words or [self._word("")], np.uint64)
        length = min(WORDS, len(values))
        hashes = np.zeros(len(values) - length + 1, np.uint64)
        for at in range(length):
            hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + values[at : at + len(hashes)]
        hashes ^= hashes >> np.uint64(31)
        sampled = hashes[hashes % np.uint64(SAMPLED) == 0]
        return np.unique(sampled if len(sampled) >= 4 else hashes)

    def _word(self, word: str) -> int:
        if word not in self._words:
            self._words[word] = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest())
        return self._words[word]


def read_source(name: str, path: Path, separator: str) -> list[Group]:
    """The groups of a source, in the order of their hashes."""
    groups: dict[str, Group] = {}
    for number, document in enumerate(_documents(name, path, separator)):
        author, one = document
        key = f"{author}, {one.title.rpartition(', ')[0]}" if author else str(number)
        groups.setdefault(key, Group()).documents.append(one)
    return sorted(groups.values(), key=lambda group: group.documents[0].place)


def _documents(name: str, path: Path, separator: str) -> Iterator[tuple[str, Document]]:
    """Author (or "") and document, of those that are not blank."""
    for file in find_files(path):
        if ".json" not in file.name:
            yield from (("", Document(name, "", text)) for text in read_file(file, "text", separator))
            continue
        for where, row in read_objects(file):
            text = row.get("text")
            if not isinstance(text, str):
                raise SelattnError(f"{where}: no text in the column 'text'")
            if text.strip():
                yield str(row.get("author") or ""), Document(name, str(row.get("title") or ""), text)


def divide(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """The groups of a source for test, validation, search and training."""
    whole = sum(group.characters for group in groups)
    wanted = min(max(SHARE * whole, LEAST), MOST * whole)
    parts: dict[str, list[Group]] = {name: [] for name in (*HELD_OUT, "train")}
    rest = iter(groups)
    for name in HELD_OUT:
        taken = 0
        for group in rest:
            parts[name].append(group)
            taken += group.characters
            if taken >= wanted:
                break
    parts["train"] = list(rest)
    if not parts["train"]:
        raise SelattnError(f"{groups[0].documents[0].source} has too few documents to be split: leave it out")
    return parts


def interleaved(groups: Iterable[Sequence[Group]]) -> list[Document]:
    """The documents of several sources, each spread evenly over the whole."""
    placed = [
        ((i + 0.5) / len(source), number, group)
        for number, source in enumerate(groups)
        for i, group in enumerate(source)
    ]
    placed.sort(key=lambda each: each[:2])
    return [document for _, _, group in placed for document in group.documents]


def build(
    sources: dict[str, Path], out: Path, unseen: Sequence[str], shares: dict[str, float], separators: dict[str, str]
) -> dict[str, dict[str, int | str]]:
    """Write everything; what `counts.json` holds: for each file and source documents, characters and checksum."""
    copies = Copies()
    dropped: dict[str, int] = {}

    def kept(groups: Sequence[Group]) -> list[Group]:
        for group in groups:
            fresh = [each for each in group.documents if copies.fresh(each.text)]
            for each in group.documents:
                dropped[each.source] = dropped.get(each.source, 0)
            dropped[group.documents[0].source] += len(group.documents) - len(fresh)
            group.documents = fresh
        return [group for group in groups if group.documents]

    read = {name: read_source(name, path, separators.get(name, "blank")) for name, path in sources.items()}
    files: dict[str, list[Document]] = {}
    for name in unseen:
        files[f"unseen/{name}"] = [each for group in kept(read.pop(name)) for each in group.documents]
    parts = {name: divide(groups) for name, groups in read.items()}
    held = {part: [kept(parts[name][part]) for name in read] for part in HELD_OUT}
    for part in ("validation", "test"):
        for name, groups in zip(read, held[part], strict=True):
            files[f"parts/{name}.{part}"] = [each for group in groups for each in group.documents]
        files[f"mixture/{part}"] = interleaved(held[part])
    files["search"] = interleaved(held["search"])
    trained = {name: kept(parts[name]["train"]) for name in read}
    files["mixture/train"] = interleaved(_limited(trained, shares))

    counts: dict[str, dict[str, int | str]] = {"near-duplicates left out": dict(dropped)}
    for name, documents in files.items():
        path = out / f"{name}.jsonl.gz"
        with folders_for(path.parent):
            counts[name] = {"sha256": _write(path, documents)}
        for source in dict.fromkeys(each.source for each in documents):
            texts = [each.text for each in documents if each.source == source]
            counts[name][f"{source}: documents"] = len(texts)
            counts[name][f"{source}: characters"] = sum(map(len, texts))
    write_json(out / "counts.json", counts)
    return counts


def _limited(trained: dict[str, list[Group]], shares: dict[str, float]) -> list[list[Group]]:
    """The training groups, those of a source with a share cut off where it is reached."""
    limited = []
    for name, groups in trained.items():
        if name in shares:
            others = sum(group.characters for other in trained if other not in shares for group in trained[other])
            left, taken = others * shares[name] / (1 - sum(shares.values())), []
            for group in groups:
                if (left := left - group.characters) < 0:
                    break
                taken.append(group)
            groups = taken
        limited.append(groups)
    return limited


def _write(path: Path, documents: Sequence[Document]) -> str:
    """The file, the same bytes each time; its checksum before it is packed."""
    digest = hashlib.sha256()
    with path.open("wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
        for each in documents:
            line = json.dumps({"source": each.source, "title": each.title, "text": each.text}, ensure_ascii=False)
            digest.update(line.encode())
            packed.write(line.encode() + b"\n")
    return digest.hexdigest()


def find_sources(given: Sequence[str]) -> dict[str, Path]:
    """Name and path of each source."""
    sources: dict[str, Path] = {}
    for each in given:
        name, equals, path = each.partition("=")
        here = [(name, Path(path))] if equals else [(f.name.split(".")[0], f) for f in find_files(Path(each))]
        for name, file in here:
            if name in sources:
                raise SelattnError(f"two sources are called {name!r}: give one another name, NAME=PATH")
            sources[name] = file
    return sources


def _shares(given: Sequence[str]) -> dict[str, float]:
    shares = {}
    for name, value in _pairs(given, "--share").items():
        with contextlib.suppress(ValueError):
            shares[name] = float(value)
        if not 0 < shares.get(name, 0) < 1:
            raise SelattnError(f"--share takes NAME=X with 0 < X < 1, not '{name}={value}'")
    if (total := sum(shares.values())) >= 1:
        raise SelattnError(f"the shares add up to {total:g}: leave some of the text to sources without one")
    return shares


def _pairs(given: Sequence[str], option: str) -> dict[str, str]:
    for each in given:
        if "=" not in each:
            raise SelattnError(f"{option} takes NAME=VALUE, not {each!r}")
    return dict(each.split("=", 1) for each in given)


def main(argv: Sequence[str]) -> int:
    """The command."""
    parser = Parser(
        prog="python -m lab mixture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="NAME=PATH, or a folder of .jsonl files")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--unseen", action="append", default=[], metavar="NAME", help="train on nothing of this source")
    parser.add_argument("--share", action="append", default=[], metavar="NAME=X", help="of the training text, at most")
    parser.add_argument("--separator", action="append", default=[], metavar="NAME=SEPARATOR", help="of a .txt source")
    args = parser.parse_args(argv)
    sources = find_sources(args.sources)
    shares = _shares(args.share)
    separators = _pairs(args.separator, "--separator")
    for name in (*args.unseen, *shares, *separators):
        if name not in sources:
            raise SelattnError(f"there is no source {name!r}: there are {', '.join(sources)}")
    for name in set(args.unseen) & set(shares):
        raise SelattnError(f"{name} is unseen: --share would change nothing")
    for name in separators:
        if not any(".txt" in file.name for file in find_files(sources[name])):
            raise SelattnError(f"{name} has no .txt file: --separator would change nothing")
    if set(args.unseen) == set(sources):
        raise SelattnError("every source is unseen: leave one to train on")
    counts = build(sources, args.out, args.unseen, shares, separators)
    for name, numbers in counts.items():
        characters = sum(int(value) for key, value in numbers.items() if key.endswith(": characters"))
        print(f"{name}: {characters / 1e6:.1f} million characters" if characters else f"{name}: {numbers}")
    return 0
