"""The one tokenizer at run time: a model's own, of transformers. Training, evaluation, search and pictures use it.

It lies beside the weights as `tokenizer.json`. Folders of older versions may have a SentencePiece model in its place;
that is converted when it is read.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from selattn.errors import SelattnError, first_line, shortened

FILES = ("tokenizer.json", "tokenizer_config.json")  # a folder with one of these has a tokenizer of transformers
PIECES = "tokenizer.model"  # SentencePiece's
_PARALLEL = "TOKENIZERS_PARALLELISM"


class Tokenizer:
    """A tokenizer of transformers, as those use it who read text for a language model.

    Whatever is not here is the tokenizer's of transformers, calls included: a pipeline takes it as it is.

    Attributes:
        hf: the tokenizer of transformers.
        path: where it was read; None if it has just been made.
        vocab_size: number of ids, added ones included.
        bos_id: what every text begins with. A tokenizer without <BOS>, such as GPT-2's, has <EOS> there.
        eos_id: what ends a text.
        pad_id: what rows are filled up with.
    """

    hf: PreTrainedTokenizerBase
    path: Path | None
    vocab_size: int
    bos_id: int
    eos_id: int
    pad_id: int

    def __init__(self, hf: PreTrainedTokenizerBase, path: Path | None = None) -> None:
        bos, eos, pad = hf.bos_token_id, hf.eos_token_id, hf.pad_token_id
        if bos is None and eos is None:
            raise SelattnError(f"the tokenizer {path or type(hf).__name__} has neither <BOS> nor <EOS>: give it one")
        bos, eos = (eos if bos is None else bos), (bos if eos is None else eos)
        self.__dict__.update(hf=hf, path=path, vocab_size=len(hf), bos_id=bos, eos_id=eos)
        self.__dict__["pad_id"] = eos if pad is None else pad

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What transformers' tokenizer gives."""
        return self.hf(*args, **kwargs)

    def __len__(self) -> int:
        return self.vocab_size

    def __getattr__(self, name: str) -> Any:
        if name == "hf" or name.startswith("__"):  # not yet there, while it is copied
            raise AttributeError(name)
        return getattr(self.hf, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.hf, name, value)  # such as the side on which a pipeline pads

    @functools.cached_property
    def fingerprint(self) -> str:
        """Two tokenizers with the same fingerprint split every text in the same way."""
        if isinstance(self.hf, PreTrainedTokenizerFast):
            found = json.loads(self.hf.backend_tokenizer.to_str())
            found = {name: value for name, value in found.items() if name not in ("truncation", "padding")}
        else:
            found = {"class": type(self.hf).__name__, "vocabulary": self.hf.get_vocab()}
        found |= {"special": [self.bos_id, self.eos_id, self.pad_id, bool(self.hf.split_special_tokens)]}
        return hashlib.blake2b(json.dumps(found, sort_keys=True).encode(), digest_size=16).hexdigest()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without <BOS> and <EOS>."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """The ids of each text, without <BOS> and <EOS>."""
        size = max(1, -(-len(texts) // threads))
        parts = [list(texts[start : start + size]) for start in range(0, len(texts), size)]
        with _alone():
            if len(parts) < 2:
                return [ids for part in parts for ids in self._encode(part)]
            with ThreadPoolExecutor(len(parts)) as pool:
                return [ids for part in pool.map(self._encode, parts) for ids in part]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self._read(texts)["input_ids"]
        return ids

    def _read(self, text: str | list[str], **wanted: bool) -> Any:
        """What the tokenizer itself gives; a vocabulary of words may lack one."""
        try:
            return self.hf(text, add_special_tokens=False, return_attention_mask=False, verbose=False, **wanted)
        except Exception as error:
            if "Missing" not in str(error):
                raise
            known = self.hf.get_vocab()
            some = ", ".join(sorted(known, key=known.__getitem__)[:4])
            raise SelattnError(
                f"the model knows only certain words ({some}, ...), and the text has another one: "
                "write its words with blanks between them"
            ) from None

    def decode(self, ids: Any, **how: Any) -> str:
        """The text of ids that begin one; special tokens have none. With options of transformers: as it decodes."""
        if how:
            return str(self.hf.decode(ids, **how))
        return str(self.hf.decode([self.bos_id, *map(int, ids)], skip_special_tokens=True))

    def split(self, text: str) -> tuple[list[int], list[str]]:
        """The ids of a text, <BOS> in front, and the part of it that each stands for.

        Put together the parts are the text, but for the first, which is what <BOS> is called. Of the several tokens
        that a character can have, the first has the character and the others have nothing.
        """
        name = str(self.hf.convert_ids_to_tokens(self.bos_id))
        if not self.hf.is_fast:
            ids = self.encode(text)
            return [self.bos_id, *ids], [name, *(str(self.hf.decode([i])) for i in ids)]
        found = self._read(text, return_offsets_mapping=True)
        parts: list[str] = []
        end = 0
        for (start, stop), group in itertools.groupby(found["offset_mapping"]):
            own = _shared_out(text[max(end, start) : stop], len(list(group)))
            parts += [text[end:start] + own[0], *own[1:]]  # blanks in front, too
            end = max(end, stop)
        if parts:
            parts[-1] += text[end:]  # blanks at the end, which some tokenizers leave out
        return [self.bos_id, *found["input_ids"]], [name, *parts]

    def save_pretrained(self, folder: str | Path) -> None:
        """Put it beside a model's weights, for `read_tokenizer` and `AutoTokenizer.from_pretrained`."""
        self.hf.save_pretrained(folder)


def _shared_out(span: str, tokens: int) -> list[str]:
    """What each of several tokens with one span stands for: a character is its first byte's, where each is a byte."""
    lengths = [len(letter.encode("utf-8", "surrogatepass")) for letter in span]
    if sum(lengths) != tokens:
        return [span, *[""] * (tokens - 1)]
    return [part for letter, length in zip(span, lengths, strict=True) for part in (letter, *[""] * (length - 1))]


def has_tokenizer(folder: Path) -> bool:
    """Whether a tokenizer lies in a folder; it is not read."""
    return any((folder / name).is_file() for name in (*FILES, PIECES))


def read_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a model's folder; or a `tokenizer.json` or a SentencePiece model by itself."""
    path = Path(path)
    try:
        if path.is_dir() and any((path / name).is_file() for name in FILES):
            return Tokenizer(_from_folder(path), path)
        if path.is_dir() and not has_tokenizer(path):
            raise SelattnError(f"there is no tokenizer in {path}: no {FILES[0]}, and no {PIECES}")
        file = path / PIECES if path.is_dir() else path
        content = file.read_bytes()
    except OSError as error:
        name = shortened(error.filename or path)
        raise SelattnError(f"cannot read the tokenizer {name}: {error.strerror or error}") from None
    if file.suffix == ".json":
        return Tokenizer(_from_folder(file.parent), file)
    from selattn.data.sentencepiece import from_sentencepiece

    return Tokenizer(from_sentencepiece(content, str(file)), file)


def _from_folder(folder: Path) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer  # which has selattn.models imported, and they import this file

    try:
        found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the library behind it raises nothing more special
        raise SelattnError(f"cannot read the tokenizer in {folder}: {first_line(error)}") from error
    return found


@contextmanager
def _alone() -> Iterator[None]:
    """Without the library's own threads, unless the user has chosen them: it warns of every fork after it has used any,
    and the workers of a data loader are forked.
    """
    if _PARALLEL in os.environ:
        yield
        return
    os.environ[_PARALLEL] = "false"
    try:
        yield
    finally:
        os.environ.pop(_PARALLEL, None)
