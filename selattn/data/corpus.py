"""From a source to its tokenizer and its token stores, made once and then found again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selattn.data.store import VERSION, TokenStore, build_store, open_store
from selattn.data.text import Reading, division, documents, identity, name_of
from selattn.data.tokenizer import PIECES, Tokenizer, read_tokenizer
from selattn.data.vocabulary import train_vocabulary
from selattn.errors import SelattnError
from selattn.utils.files import cache_folder, make_folder
from selattn.utils.progress import ProgressLine

_LONGEST = 60  # characters of a source in the name of a folder, which has 255 in all


def tokenizer_for(
    source: str | Path,
    vocab_size: int = 8000,
    reading: Reading | None = None,
    cache: Path | None = None,
    progress: bool = False,
) -> Tokenizer:
    """A tokenizer trained on the training documents of a source."""
    reading = reading or Reading()
    key = _key(identity(source), dataclasses.asdict(reading), vocab_size)
    path = (cache or cache_folder()) / "tokenizers" / f"{_slug(source)}-{vocab_size}-{key}"

    def fill(part: Path) -> None:
        title = f"training a tokenizer of {vocab_size:,} tokens on {label(source, 'train')}"
        with ProgressLine(title, shown=progress):
            (part / PIECES).write_bytes(train_vocabulary(documents(source, "train", reading), vocab_size))

    make_folder(path, fill)
    try:
        return read_tokenizer(path)
    except SelattnError as error:
        raise SelattnError(f"{path} is damaged: {error}; delete that folder, and it is trained again") from None


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
    rule = division(source, split)  # no part of the key where there is none to tell apart: those stores stay valid
    settings = [identity(source), dataclasses.asdict(reading), split, tokenizer.fingerprint, eos, VERSION]
    key = _key(*settings, *filter(None, [rule]))
    path = (cache or cache_folder()) / "stores" / f"{_slug(source)}-{split}-{key}"
    texts = documents(source, split, reading)
    # What is there was made of the same: the folder is named after all that matters.
    return open_store(path, texts, tokenizer, label(source, split), eos, threads, progress)


def label(source: str | Path, split: str) -> str:
    """What a split of a source is called, however the source was spelled."""
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
    """A folder to keep or to copy: `tokenizer/` and a store named after each split. It is made whole or not at all."""

    def fill(part: Path) -> None:
        for split in splits:
            texts = documents(source, split, reading)
            build_store(part / split, texts, tokenizer, f"{source} ({split})", eos, threads, progress)
        tokenizer.save_pretrained(part / "tokenizer")

    make_folder(folder, fill)


def _key(*parts: Any) -> str:
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8).hexdigest()


def _slug(source: str | Path) -> str:
    """The end of a source's name as a part of a folder's name, so that a person can tell the folders apart."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(source).name)[-_LONGEST:].strip("-.") or "text"
