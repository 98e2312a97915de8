"""Token stores: documents as tokens in one memory-mapped file, written once and checked when opened.

A store is a folder:

    tokens.bin    all documents one after another, each <BOS> tokens <EOS>; uint16, or uint32 for a large vocabulary
    offsets.bin   int64, where each document begins, and at the end the number of tokens
    meta.json     what it was made of, how large it is, and the checksums of both files

`store_for` keeps the stores of a source's splits in the cache, each named after all that decides what is in it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from selattn.data.sources import Reading, division, documents, identity, name_of
from selattn.data.tokenizer import Tokenizer
from selattn.errors import SelattnError
from selattn.utils.files import cache_folder, make_folder
from selattn.utils.progress import ProgressLine

VERSION = 1
_TOKENS, _OFFSETS, _META = "tokens.bin", "offsets.bin", "meta.json"
_BATCH = 128  # documents that are tokenized at a time
_LOOKED_AT = 256  # documents whose first and last token are checked when a store is opened
_QUICK = 1 << 28  # bytes that are read within a second: a store of the cache that is no larger is verified
_NUMBERS = ("documents", "tokens", "bytes", "vocab_size", "pad_id", "bos_id")
_LONGEST = 60  # characters of a source in the name of a folder, which has 255 in all


class TokenStore:
    """The documents of a store. It is reopened, not copied, when it is sent to another process.

    Attributes:
        path: its folder.
        meta: the content of meta.json.
        name: of its text, for messages: a folder of the cache says nothing to a reader.
        checksum: of all its tokens; tells two texts apart, whatever their files are called.
        vocab_size, bos_id, pad_id: of its tokenizer.
        tokens: [tokens] of all documents, memory-mapped.
        offsets: [documents + 1] int64, memory-mapped; document d is tokens[offsets[d] : offsets[d + 1]].
    """

    def __init__(self, path: str | Path, verify: bool = False) -> None:
        """Open a store, check its sizes and look at some documents; with `verify`, check that no byte has changed."""
        self.path = Path(path)
        self.meta = _read_meta(self.path)
        self.name: str = self.meta["source"] or str(self.path)
        self.checksum: str = self.meta["checksums"][_TOKENS]
        self.vocab_size: int = self.meta["vocab_size"]
        self.bos_id: int = self.meta["bos_id"]
        self.pad_id: int = self.meta["pad_id"]
        self.tokens = self._map(_TOKENS, np.dtype(self.meta["dtype"]), self.meta["tokens"])
        self.offsets = self._map(_OFFSETS, np.dtype(np.int64), self.meta["documents"] + 1)
        if verify:
            self.verify()
        self._look()

    def _map(self, name: str, dtype: np.dtype[Any], size: int) -> NDArray[Any]:
        file = self.path / name
        there = file.stat().st_size if file.is_file() else 0
        if there != size * dtype.itemsize:
            raise _damaged(self.path, f"{name} has {there} bytes, not {size * dtype.itemsize}")
        return np.memmap(file, dtype, "r")

    def _look(self) -> None:
        """Raise unless the documents, some of them if there are many, begin and end as documents do."""
        count, end = len(self), self.meta["eos_id"]
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.tokens):
            raise _damaged(self.path, f"{_OFFSETS} does not fit {_TOKENS}")
        for document in np.linspace(0, count - 1, min(count, _LOOKED_AT)).astype(np.int64):
            start, stop = (int(at) for at in self.offsets[document : document + 2])
            if not 0 <= start < stop <= len(self.tokens):
                raise _damaged(self.path, f"{_OFFSETS} holds no offsets of documents")
            first, last = self.tokens[start : start + 64], self.tokens[stop - 1]
            if first[0] != self.bos_id or (end is not None and last != end) or first.max() >= self.vocab_size:
                raise _damaged(self.path, f"{_TOKENS} does not hold the documents that {_OFFSETS} names")

    def verify(self) -> None:
        """Read everything once and compare the checksums."""
        for name, checksum in self.meta["checksums"].items():
            with (self.path / name).open("rb") as file:
                if hashlib.file_digest(file, _hash).hexdigest() != checksum:
                    raise _damaged(self.path, f"{name} has changed since it was written")

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenStore, (self.path,)

    def __len__(self) -> int:
        """The number of documents."""
        return self.meta["documents"]

    def __getitem__(self, document: int) -> NDArray[Any]:
        """The tokens of a document, with its <BOS> and <EOS>."""
        if not 0 <= document < len(self):
            raise IndexError(f"document {document} of {len(self)}")
        return self.tokens[self.offsets[document] : self.offsets[document + 1]]


def _read_meta(path: Path) -> dict[str, Any]:
    file = path / _META
    try:
        meta = json.loads(file.read_bytes())
    except FileNotFoundError:
        advice = "if it was one, delete the folder and build it again"
        raise SelattnError(f"{path} is not a token store: there is no {_META} in it; {advice}") from None
    except OSError as error:
        raise SelattnError(f"cannot read {file}: {error.strerror or error}") from None
    except ValueError:
        raise _damaged(path, f"{_META} is not whole") from None
    if isinstance(meta, dict) and meta.get("version", VERSION) != VERSION:
        raise SelattnError(f"{path} is not a token store of version {VERSION}; delete the folder and build it again")
    whole = (
        isinstance(meta, dict)
        and all(isinstance(meta.get(name), int) and meta[name] >= 0 for name in _NUMBERS)
        and meta["documents"] > 0
        and meta.get("dtype") in ("uint16", "uint32")
        and isinstance(meta.get("checksums"), dict)
        and {_TOKENS, _OFFSETS} == meta["checksums"].keys()
        and {"version", "source", "tokenizer", "eos_id"} <= meta.keys()
    )
    if not whole:
        raise _damaged(path, f"{_META} does not say what is in it")
    return meta


def _damaged(path: Path, how: str) -> SelattnError:
    return SelattnError(f"the token store {path} is damaged: {how}; delete the folder and build it again")


def store_for(
    source: str | Path,
    tokenizer: Tokenizer,
    split: str = "train",
    reading: Reading | None = None,
    eos: bool = True,
    cache: Path | None = None,
    threads: int = 1,
    progress: bool = False,
) -> TokenStore:
    """The token store of a split, built if the cache has none for this text, tokenizer and settings."""
    reading = reading or Reading()
    settings = [identity(source), dataclasses.asdict(reading), split, tokenizer.fingerprint, eos, VERSION]
    if rule := division(source, split):  # older stores, without a rule, stay valid
        settings.append(rule)
    path = cached("stores", source, split, *settings, cache=cache)
    # A store that is there was made of the same: its folder is named after everything that matters.
    return _open_store(path, documents(source, split, reading), tokenizer, label(source, split), eos, threads, progress)


def cached(kind: str, source: str | Path, what: object, *key: object, cache: Path | None = None) -> Path:
    """The folder in the cache for something made of a source, named after a key of all that decides what is in it."""
    digest = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=8).hexdigest()
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(source).name)[-_LONGEST:].strip("-.") or "text"
    return (cache or cache_folder()) / kind / f"{name}-{what}-{digest}"


def label(source: str | Path, split: str) -> str:
    """The name of a split, for messages; the same for every spelling of the source."""
    return f"{name_of(source)} ({split})"


def build_corpus(
    folder: Path,
    source: str | Path,
    tokenizer: Tokenizer,
    splits: Sequence[str] = ("train", "validation"),
    reading: Reading | None = None,
    eos: bool = True,
    threads: int = 1,
    progress: bool = False,
) -> None:
    """Make a folder to keep or to copy, whole or not at all: `tokenizer/`, and a store named after each split."""

    def fill(part: Path) -> None:
        for split in splits:
            texts = documents(source, split, reading)
            _open_store(part / split, texts, tokenizer, f"{source} ({split})", eos, threads, progress)
        tokenizer.save_pretrained(part / "tokenizer")

    make_folder(folder, fill)


def build_store(
    path: str | Path,
    documents: Iterable[str],
    tokenizer: Tokenizer,
    source: str = "",
    eos: bool = True,
    threads: int = 1,
    progress: bool = False,
) -> TokenStore:
    """Tokenize the documents into a new store, or open the one that is there.

    Args:
        path: the folder to be. It appears when it is complete; see `selattn.utils.files.make_folder`.
        documents: texts; they are read once, and only if there is no store yet.
        tokenizer: its fingerprint is written down; a store that is there must have the same, and the same source.
        source: what the text is, for the record.
        eos: whether documents end with <EOS>. The paper does not say; without it a model never learns to end.
        threads: for tokenizing.
        progress: whether to show a progress bar on the terminal.
    """
    store = _open_store(Path(path), documents, tokenizer, source, eos, threads, progress)
    wanted = {"tokenizer": tokenizer.fingerprint, "source": source, "eos_id": tokenizer.eos_id if eos else None}
    for name, value in wanted.items():
        if store.meta[name] != value:
            raise SelattnError(
                f"{path} is there, but was made with another {name.removesuffix('_id')}; choose another folder"
            )
    return store


def _open_store(
    path: Path, texts: Iterable[str], tokenizer: Tokenizer, source: str, eos: bool, threads: int, progress: bool
) -> TokenStore:
    """The store at `path`, made first if there is none; one that is there is not compared with what is asked for."""

    def fill(part: Path) -> None:
        with ProgressLine(f"tokenizing {source or path.name}", shown=progress) as line:
            counts = _write(part, texts, tokenizer, eos, threads, line)
        meta = {
            "version": VERSION,
            "source": source,
            "tokenizer": tokenizer.fingerprint,
            "vocab_size": tokenizer.vocab_size,
            "pad_id": tokenizer.pad_id,
            "bos_id": tokenizer.bos_id,
            "eos_id": tokenizer.eos_id if eos else None,
            **counts,
        }
        (part / _META).write_text(json.dumps(meta, indent=2) + "\n")

    made = make_folder(path, fill)
    store = TokenStore(path)
    if not made and store.tokens.nbytes + store.offsets.nbytes <= _QUICK:
        store.verify()
    return store


def _write(
    part: Path, texts: Iterable[str], tokenizer: Tokenizer, eos: bool, threads: int, line: ProgressLine
) -> dict[str, Any]:
    """Write both files and return what meta.json says about them."""
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
    end = [tokenizer.eos_id] if eos else []
    count = tokens = size = 0
    digests = {name: _hash() for name in (_TOKENS, _OFFSETS)}
    with _open(part / _TOKENS) as token_file, _open(part / _OFFSETS) as offset_file:
        files = {_TOKENS: token_file, _OFFSETS: offset_file}

        def write(name: str, array: NDArray[Any]) -> None:
            data = array.tobytes()
            digests[name].update(data)
            files[name].write(data)

        write(_OFFSETS, np.zeros(1, np.int64))
        for batch in _batches(texts):
            rows = [[tokenizer.bos_id, *ids, *end] for ids in tokenizer.encode_batch(batch, threads)]
            write(_TOKENS, np.concatenate([np.array(row, dtype) for row in rows]))
            write(_OFFSETS, tokens + np.cumsum([len(row) for row in rows], dtype=np.int64))
            count += len(batch)
            tokens += sum(map(len, rows))
            size += sum(len(text.encode()) for text in batch)
            line.update(text=f"{count:,} documents, {tokens:,} tokens")
    if not count:
        raise SelattnError("there are no documents to make a token store of")
    checksums = {name: digest.hexdigest() for name, digest in digests.items()}
    return {"documents": count, "tokens": tokens, "bytes": size, "dtype": dtype.name, "checksums": checksums}


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    stream = iter(texts)
    while batch := list(islice(stream, _BATCH)):
        yield batch


def _open(path: Path) -> IO[bytes]:
    return path.open("wb")


def _hash() -> Any:
    return hashlib.blake2b(digest_size=16)
