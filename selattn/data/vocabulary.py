"""Making a vocabulary with SentencePiece; text is then read with it as a tokenizer of transformers."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from selattn.data import pieces
from selattn.data.sources import Reading, documents, identity
from selattn.data.store import cached, label
from selattn.data.tokenizer import PIECES, Tokenizer, read_tokenizer
from selattn.errors import SelattnError, require
from selattn.utils.files import make_folder
from selattn.utils.progress import ProgressLine

_LONGEST_LINE = 4000  # characters; SentencePiece leaves out lines longer than its limit of 16,384 bytes
# Every text comes back as it was: no normalisation, all blanks kept, and bytes for characters without a piece.
_SETTINGS: dict[str, Any] = {
    "model_type": "unigram",
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "split_digits": True,
    "byte_fallback": True,
    "character_coverage": 0.9995,
    "max_sentence_length": 4 * _LONGEST_LINE + 384,
    "pad_id": 0,
    "eos_id": 1,
    "unk_id": 2,
    "bos_id": 3,
    "num_threads": 1,  # the pieces depend on it
    "minloglevel": 2,
}


def tokenizer_for(
    source: str | Path,
    vocab_size: int = 8000,
    reading: Reading | None = None,
    cache: Path | None = None,
    progress: bool = False,
) -> Tokenizer:
    """A tokenizer trained on the training documents of a source, or the one in the cache."""
    reading = reading or Reading()
    key = (identity(source), dataclasses.asdict(reading), vocab_size)
    path = cached("tokenizers", source, vocab_size, *key, cache=cache)

    def fill(part: Path) -> None:
        title = f"training a tokenizer of {vocab_size:,} tokens on {label(source, 'train')}"
        with ProgressLine(title, shown=progress):
            (part / PIECES).write_bytes(train_vocabulary(documents(source, "train", reading), vocab_size))

    make_folder(path, fill)
    try:
        return read_tokenizer(path)
    except SelattnError as error:
        raise SelattnError(f"{path} is damaged: {error}; delete that folder, and it is trained again") from None


def train_vocabulary(documents: Iterable[str], vocab_size: int = 8000, characters: int = 10_000_000) -> bytes:
    """Train a unigram model on the first `characters` characters, and return its file; the same text gives the same.

    It has <pad> 0, </s> 1, <unk> 2 and <s> 3, then 256 bytes, then the pieces; `vocab_size` is the sum.
    """
    require("sentencepiece")
    import sentencepiece

    least = 3 + 1 + 256
    if vocab_size <= least:
        raise SelattnError(f"a vocabulary needs more than {least} tokens (special ones and bytes), not {vocab_size}")
    text = "\n".join(_lines(documents, characters)).encode()
    # -P: nothing is imported from the program's own folder.
    settings = json.dumps({"vocab_size": vocab_size, **_SETTINGS})
    command = [sys.executable, "-P", pieces.__file__, settings, str(Path(sentencepiece.__file__).parents[1])]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            model, said = process.communicate(text)
        except BaseException:  # Ctrl-C, most likely
            process.kill()
            raise
    if process.returncode == pieces.REFUSED:
        raise _one_line(model.decode(), vocab_size)
    if process.returncode:
        last = said.decode(errors="replace").strip().rpartition("\n")[2] or "no reason"
        raise SelattnError(f"SentencePiece ended with code {process.returncode} while it trained: {last}")
    return model


def _lines(documents: Iterable[str], characters: int) -> Iterator[str]:
    """Lines, which SentencePiece takes for sentences; long ones in pieces."""
    seen = 0
    for document in documents:
        for line in document.split("\n"):
            for start in range(0, len(line), _LONGEST_LINE):
                yield line[start : start + _LONGEST_LINE].replace("\0", "")
        seen += len(document)
        if seen >= characters:
            return


def _one_line(message: str, vocab_size: int) -> SelattnError:
    """SentencePiece's own message names a line of its source and, with luck, the limit."""
    if most := re.search(r"Vocabulary size too high .* <= (\d+)", message):
        return SelattnError(f"the text is too small for {vocab_size} tokens: at most {most[1]}, or give more text")
    if needed := re.search(r"smaller than required_chars. \d+ vs (\d+)", message):
        return SelattnError(f"{vocab_size} tokens are too few for the characters of the text: at least {needed[1]}")
    if "sentences_.empty()" in message:
        return SelattnError("there is no text to train a tokenizer on")
    return SelattnError(f"SentencePiece could not train {vocab_size} tokens: {message}")
