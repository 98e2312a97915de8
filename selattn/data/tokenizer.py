"""SentencePiece tokenizers: training one, and using one that exists."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sentencepiece

from selattn.data import pieces
from selattn.errors import SelattnError, shortened

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MODEL_FILE = "tokenizer.model"
_ADDED = {"pad": "<pad>", "eos": "</s>", "bos": "<s>"}  # in the order in which missing ones are numbered
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


class Tokenizer:
    """A SentencePiece model file, or a folder with `tokenizer.model` in it.

    A special token that the model lacks (T5's has no <BOS>) gets an id behind the last piece.

    Attributes:
        path: of the model file.
        fingerprint: of its bytes: two tokenizers with the same fingerprint are the same.
        vocab_size: number of ids, added ones included.
        pad_id, eos_id, bos_id: the special tokens.
        special_tokens: what `pad`, `eos` and `bos` are called.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        try:
            self.path = path / MODEL_FILE if path.is_dir() else path
            model = self.path.read_bytes()
        except OSError as error:
            name = shortened(error.filename or path)
            raise SelattnError(f"cannot read the tokenizer {name}: {error.strerror or error}") from None
        self._pieces = sentencepiece.SentencePieceProcessor()
        try:
            self._pieces.LoadFromSerializedProto(model)
        except RuntimeError:
            raise SelattnError(f"{self.path} is not a SentencePiece model") from None
        self.fingerprint = hashlib.blake2b(model, digest_size=16).hexdigest()
        self.vocab_size: int = self._pieces.vocab_size()
        self.special_tokens = dict(_ADDED)
        self.pad_id, self.eos_id, self.bos_id = (self._special(name) for name in _ADDED)

    def _special(self, name: str) -> int:
        index: int = getattr(self._pieces, f"{name}_id")()
        if index < 0:
            index = self.vocab_size
            self.vocab_size += 1
        else:
            self.special_tokens[name] = self._pieces.id_to_piece(index)
        return index

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self.path,)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without <BOS> and <EOS>."""
        return self._pieces.encode(text)

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """The ids of each text."""
        return self._pieces.encode(list(texts), num_threads=threads)

    def decode(self, ids: Iterable[int]) -> str:
        """The text; special tokens have none."""
        size = self._pieces.vocab_size()
        return self._pieces.decode([int(i) for i in ids if i < size])

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Each id in readable form, for tables and pictures."""
        names = self.special_tokens
        special = {self.pad_id: names["pad"], self.eos_id: names["eos"], self.bos_id: names["bos"]}
        return [special[i] if i in special else self._pieces.id_to_piece(i) for i in map(int, ids)]

    def model_bytes(self) -> bytes:
        """The model file."""
        return self._pieces.serialized_model_proto()

    def to_transformers(self) -> PreTrainedTokenizerBase:
        """The same as a tokenizer of transformers, see `selattn.data.fast_tokenizer`."""
        from selattn.data.fast_tokenizer import fast_tokenizer

        return fast_tokenizer(self)

    def save_pretrained(self, folder: str | Path) -> None:
        """Put it beside a model's weights, for `Tokenizer(folder)` and for `AutoTokenizer.from_pretrained(folder)`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MODEL_FILE).write_bytes(self.model_bytes())
        self.to_transformers().save_pretrained(folder)


def train_model(documents: Iterable[str], vocab_size: int = 8000, characters: int = 10_000_000) -> bytes:
    """Train a unigram model on the first `characters` characters and return its file; the same text gives the same.

    It has <pad> 0, </s> 1, <unk> 2 and <s> 3, then 256 bytes, then the pieces; `vocab_size` is the sum.
    """
    least = 3 + 1 + 256
    if vocab_size <= least:
        raise SelattnError(f"a vocabulary needs more than {least} tokens (special ones and bytes), not {vocab_size}")
    text = "\n".join(_lines(documents, characters)).encode()
    # -P: the program's own folder is no place to import from.
    settings = json.dumps({"vocab_size": vocab_size, **_SETTINGS})
    command = [sys.executable, "-P", pieces.__file__, settings, str(Path(sentencepiece.__file__).parents[1])]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            model, said = process.communicate(text)
        except BaseException:  # Ctrl-C, most likely: nobody waits for the model any more
            process.kill()
            raise
    if process.returncode == pieces.REFUSED:
        raise _one_line(model.decode(), vocab_size)
    if process.returncode:
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise SelattnError(
            f"SentencePiece ended with code {process.returncode} while it trained: {last or 'no reason'}"
        )
    return model


def _lines(documents: Iterable[str], characters: int) -> Iterator[str]:
    """What SentencePiece takes for sentences: lines, in pieces if they are long."""
    seen = 0
    for document in documents:
        for line in document.split("\n"):
            for start in range(0, len(line), _LONGEST_LINE):
                yield line[start : start + _LONGEST_LINE].replace("\0", "")
        seen += len(document)
        if seen >= characters:
            return


def _one_line(message: str, vocab_size: int) -> SelattnError:
    """SentencePiece's own message names a line of its source and, if one is lucky, the limit."""
    most = re.search(r"Vocabulary size too high .* <= (\d+)", message)
    if most:
        return SelattnError(f"the text is too small for {vocab_size} tokens: at most {most[1]}, or give more text")
    needed = re.search(r"smaller than required_chars. \d+ vs (\d+)", message)
    if needed:
        return SelattnError(f"{vocab_size} tokens are too few for the characters of the text: at least {needed[1]}")
    if "sentences_.empty()" in message:
        return SelattnError("there is no text to train a tokenizer on")
    return SelattnError(f"SentencePiece could not train {vocab_size} tokens: {message}")
