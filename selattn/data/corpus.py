"""From a source to its tokenizer and its token stores, made once and then found again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selattn.data.folders import cache_folder, make_folder
from selattn.data.store import VERSION, TokenStore, build_store
from selattn.data.text import Reading, documents, identity
from selattn.data.tokenizer import MODEL_FILE, Tokenizer, train_model


def tokenizer_for(
    source: str | Path, vocab_size: int = 8000, reading: Reading | None = None, cache: Path | None = None
) -> Tokenizer:
    """A tokenizer trained on the training documents of a source."""
    reading = reading or Reading()
    key = _key(identity(source), dataclasses.asdict(reading), vocab_size)
    path = (cache or cache_folder()) / "tokenizers" / f"{_slug(source)}-{vocab_size}-{key}"

    def fill(part: Path) -> None:
        (part / MODEL_FILE).write_bytes(train_model(documents(source, "train", reading), vocab_size))

    make_folder(path, fill)
    return Tokenizer(path)


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
    key = _key(identity(source), dataclasses.asdict(reading), split, tokenizer.fingerprint, eos, VERSION)
    path = (cache or cache_folder()) / "stores" / f"{_slug(source)}-{split}-{key}"
    texts = documents(source, split, reading)
    return build_store(path, texts, tokenizer, f"{source} ({split})", eos, threads, progress)


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
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(source).name).strip("-.") or "text"
