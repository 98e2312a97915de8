"""How many documents SentencePiece splits differently from the tokenizer of transformers made of it.

    python benchmarks/splitting.py zoo:memory --data TEXT [--out results/splitting.json]

The models' folders must have a SentencePiece model, `tokenizer.model`, as older versions saved it. Models that
share a tokenizer are counted once.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table
from sentencepiece import SentencePieceProcessor

from selattn.data import Reading, Tokenizer, documents
from selattn.data.tokenizer import PIECES
from selattn.errors import SelattnError
from selattn.models.loading import Loaded, load
from selattn.utils import records

BATCH = 64  # documents at a time


def places(ours: list[int], theirs: list[int], sizes: list[int]) -> int:
    """At how many places two ways to split a text differ; `sizes` has the bytes of each token."""
    found = a = b = at_a = at_b = 0
    while a < len(ours) and b < len(theirs):
        if at_a == at_b and ours[a] == theirs[b]:
            at_a, at_b, a, b = at_a + sizes[ours[a]], at_b + sizes[theirs[b]], a + 1, b + 1
            continue
        found += at_a == at_b  # here they part
        if at_a <= at_b:
            at_a, a = at_a + sizes[ours[a]], a + 1
        else:
            at_b, b = at_b + sizes[theirs[b]], b + 1
    return found


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Lists of that many texts."""
    stream = iter(texts)
    while batch := list(islice(stream, BATCH)):
        yield batch


def count(pieces: SentencePieceProcessor, tokenizer: Tokenizer, texts: Iterable[str], title: str) -> dict[str, Any]:
    """Documents and tokens, and how many of them differ."""
    names = [pieces.id_to_piece(i) for i in range(pieces.vocab_size())]
    sizes = [1 if pieces.is_byte(i) else len(name.encode()) for i, name in enumerate(names)]
    found = dict.fromkeys(("documents", "documents_that_differ", "sentencepiece_tokens", "tokens", "places"), 0)
    for batch in track(batches(texts), title, console=Console(stderr=True), transient=True):
        for before, after in zip(pieces.encode(batch), tokenizer.encode_batch(batch), strict=True):
            found["documents"] += 1
            found["documents_that_differ"] += before != after
            found["sentencepiece_tokens"] += len(before)
            found["tokens"] += len(after)
            found["places"] += 0 if before == after else places(before, after, sizes)
    return {**found, "places_per_million_tokens": 1e6 * found["places"] / found["tokens"]}


def by_tokenizer(models: Iterable[str]) -> list[tuple[list[str], Loaded]]:
    """The names of the models that have the same tokenizer, and one of them."""
    found: dict[str, tuple[list[str], Loaded]] = {}
    for name in models:
        loaded = load(name)
        if not (loaded.folder / PIECES).is_file():
            raise SelattnError(f"{loaded.folder} has no {PIECES}: there is nothing to compare its tokenizer with")
        found.setdefault(loaded.tokenizer.fingerprint, ([], loaded))[0].append(name)
    return list(found.values())


def main() -> None:
    """Count, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--data", required=True, metavar="TEXT")
    parser.add_argument("--validation", type=float, default=0.02)
    parser.add_argument("--limit", type=int, help="documents of each split")
    parser.add_argument("--out", default="results/splitting.json")
    args = parser.parse_args()
    reading = Reading(validation=args.validation, limit=args.limit)
    rows = []
    for names, loaded in by_tokenizer(args.models):
        pieces = SentencePieceProcessor(model_file=str(loaded.folder / PIECES))
        for split in ("train", "validation"):
            texts = documents(args.data, split, reading)
            title = f"{names[0]}, {split}"
            row = {"models": names, "vocabulary": loaded.tokenizer.vocab_size, "split": split}
            rows.append({**row, **count(pieces, loaded.tokenizer, texts, title)})
    table = Table("models", "split", "documents", "differ", "tokens", "places per million tokens")
    for row in rows:
        numbers = (f"{row[name]:,}" for name in ("documents", "documents_that_differ", "tokens"))
        table.add_row(" ".join(row["models"]), row["split"], *numbers, f"{row['places_per_million_tokens']:.1f}")
    Console().print(table)
    print(records.write_record(args.out, {"data": args.data, "rows": rows}, seed=None))


if __name__ == "__main__":
    main()
