"""Reading tokenizers: those of transformers; SentencePiece and llama2.c models are converted when they are read.

Training, evaluation, search and pictures use `Tokenizer`. It is saved beside the weights as `tokenizer.json`, which
`AutoTokenizer.from_pretrained` reads without selattn, too.

A converted tokenizer gives the tokens of SentencePiece but for near ties of a unigram model: SentencePiece adds the
scores of a whole document in single precision, so the rounding of a long one can decide between two ways to split a
word; here they are added in double precision. `benchmarks/splitting.py` counts how often that happens.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import re
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from selattn.errors import SelattnError, first_line, require, shortened

FILES = ("tokenizer.json", "tokenizer_config.json")  # a folder with one of these has a tokenizer of transformers
PIECES = "tokenizer.model"  # SentencePiece's
_PARALLEL = "TOKENIZERS_PARALLELISM"

# Of SentencePiece's model files.
_UNIGRAM, _BPE = 1, 2
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # types of pieces; only normal ones are looked for in a text
_BLANK = "▁"  # how SentencePiece writes a blank
_ADDED = {"pad": "<pad>", "eos": "</s>", "bos": "<s>"}  # in the order in which missing ones are numbered


class Tokenizer:
    """A tokenizer of transformers with a <BOS>, an <EOS> and a padding token, whatever it calls them.

    Other attributes and calls are those of transformers' tokenizer: a pipeline takes it as it is.

    Attributes:
        hf: the tokenizer of transformers.
        path: where it was read; None if it was just made.
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
        own = {"hf": hf, "path": path, "vocab_size": len(hf), "bos_id": bos, "eos_id": eos}
        self.__dict__.update(own, pad_id=eos if pad is None else pad)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.hf(*args, **kwargs)

    def __len__(self) -> int:
        return self.vocab_size

    def __getattr__(self, name: str) -> Any:
        if name == "hf" or name.startswith("__"):  # not there yet, while it is copied
            raise AttributeError(name)
        return getattr(self.hf, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.hf, name, value)  # such as the side on which a pipeline pads

    @functools.cached_property
    def fingerprint(self) -> str:
        """Two tokenizers with the same fingerprint split every text in the same way."""
        about: dict[str, Any]
        if isinstance(self.hf, PreTrainedTokenizerFast):
            about = json.loads(self.hf.backend_tokenizer.to_str())
            about = {name: value for name, value in about.items() if name not in ("truncation", "padding")}
        else:
            about = {"class": type(self.hf).__name__, "vocabulary": self.hf.get_vocab()}
        about |= {"special": [self.bos_id, self.eos_id, self.pad_id, bool(self.hf.split_special_tokens)]}
        return hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16).hexdigest()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without <BOS> and <EOS>."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """The ids of each text, without <BOS> and <EOS>."""
        size = max(1, -(-len(texts) // threads))
        parts = [list(texts[start : start + size]) for start in range(0, len(texts), size)]
        with _without_threads():
            if len(parts) < 2:
                return [ids for part in parts for ids in self._read(part)["input_ids"]]
            with ThreadPoolExecutor(len(parts)) as pool:
                return [ids for part in pool.map(self._read, parts) for ids in part["input_ids"]]

    def _read(self, text: str | list[str], **wanted: bool) -> Any:
        """The encoding of transformers; one line for a word that a vocabulary of whole words lacks."""
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
        """The text of ids that begin one, without special tokens; with options, as transformers decodes."""
        if how:
            return str(self.hf.decode(ids, **how))
        return str(self.hf.decode([self.bos_id, *map(int, ids)], skip_special_tokens=True))

    def split(self, text: str) -> tuple[list[int], list[str]]:
        """The ids of a text, <BOS> in front, and the part of the text that each stands for.

        The parts together are the text, but for the first, which is the name of <BOS>. Of the several tokens that a
        character can have, the first has the character and the others have nothing.
        """
        name = str(self.hf.convert_ids_to_tokens(self.bos_id))
        if not self.hf.is_fast:
            ids = self.encode(text)
            return [self.bos_id, *ids], [name, *(str(self.hf.decode([i])) for i in ids)]
        encoding = self._read(text, return_offsets_mapping=True)
        parts: list[str] = []
        end = 0
        for (start, stop), group in itertools.groupby(encoding["offset_mapping"]):
            own = _shared_out(text[max(end, start) : stop], len(list(group)))
            parts += [text[end:start] + own[0], *own[1:]]  # blanks in front, too
            end = max(end, stop)
        if parts:
            parts[-1] += text[end:]  # blanks at the end, which some tokenizers leave out
        return [self.bos_id, *encoding["input_ids"]], [name, *parts]

    def save_pretrained(self, folder: str | Path) -> None:
        """Save it into a model's folder, for `read_tokenizer` and `AutoTokenizer.from_pretrained`."""
        self.hf.save_pretrained(folder)


def _shared_out(span: str, tokens: int) -> list[str]:
    """The parts of several tokens that share a span: where each is a byte, the first byte of a character has it."""
    lengths = [len(letter.encode("utf-8", "surrogatepass")) for letter in span]
    if sum(lengths) != tokens:
        return [span, *[""] * (tokens - 1)]
    return [part for letter, length in zip(span, lengths, strict=True) for part in (letter, *[""] * (length - 1))]


@contextmanager
def _without_threads() -> Iterator[None]:
    """Turn the threads of the library `tokenizers` off, unless the user has chosen them.

    Once it has used any it warns of every fork, and the workers of a data loader are forked.
    """
    if _PARALLEL in os.environ:
        yield
        return
    os.environ[_PARALLEL] = "false"
    try:
        yield
    finally:
        os.environ.pop(_PARALLEL, None)


def has_tokenizer(folder: Path) -> bool:
    """Whether there is a tokenizer in a folder; it is not read."""
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
    return Tokenizer(from_sentencepiece(content, str(file)), file)


def _from_folder(folder: Path) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer  # which has selattn.models imported, and they import this file

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the library behind it raises nothing more special
        raise SelattnError(f"cannot read the tokenizer in {folder}: {first_line(error)}") from error
    return tokenizer


# ---- converted from SentencePiece and llama2.c ----


class SelectiveTokenizer(PreTrainedTokenizerFast):
    """A tokenizer that puts a blank before a text, and takes it away again from whole texts only.

    SentencePiece treats the first word as any other, as if a blank stood before it. What comes back for ids must not
    have that blank if they begin a text; but if they continue one, the blank is the one between the two, and
    `pipeline("text-generation")`, which decodes the continuation alone, would lose it. A text begins with <BOS>.

    Without selattn, `AutoTokenizer` reads the same files as a tokenizer that never takes the blank away.

    `blank_before_text` in the files tells whether there is such a blank. It is not an argument of an `__init__` here:
    of a class with an `__init__` of its own, transformers reads the vocabulary from the files and nothing else.
    """

    def _decode(self, token_ids: int | list[int], skip_special_tokens: bool = False, *args: Any, **kwargs: Any) -> str:
        text: str = super()._decode(token_ids, skip_special_tokens, *args, **kwargs)
        if not (skip_special_tokens and self.init_kwargs.get("blank_before_text")):
            return text  # with <BOS> in the text, the blank stands behind it
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        first = next((token for token in ids if token != self.pad_token_id), None)
        return text.removeprefix(" ") if first == self.bos_token_id else text


def from_sentencepiece(file: bytes, name: str) -> SelectiveTokenizer:
    """Convert a SentencePiece model (unigram or BPE), given as its file's content; `name` is for messages.

    A text gets <BOS> in front, as every row in training has, and no <EOS>. A special token that the model lacks (T5's
    has no <BOS>) gets an id behind the last piece.
    """
    require("sentencepiece")
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor()
    try:
        pieces.LoadFromSerializedProto(file)
    except RuntimeError:
        raise SelattnError(f"{name} is not a SentencePiece model") from None
    model = _new_model()
    model.ParseFromString(file)
    if model.trainer_spec.model_type not in (_UNIGRAM, _BPE):
        raise SelattnError(f"{name} is neither unigram nor BPE: only those can be used with transformers")
    backend = tokenizers.Tokenizer(_unigram(model) if model.trainer_spec.model_type == _UNIGRAM else _bpe(model))
    backend.normalizer = normalizers.Sequence(_normalizers(model.normalizer_spec))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_never_text(model)), "isolated")
    backend.decoder = decoders.Sequence([decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse()])
    special = {}
    for kind, added in _ADDED.items():  # those that exist keep their ids, the others are numbered in this order
        number: int = getattr(pieces, f"{kind}_id")()
        special[kind] = added if number < 0 else pieces.id_to_piece(number)
        backend.add_special_tokens([AddedToken(special[kind], special=True, normalized=False)])
    bos = special["bos"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, backend.token_to_id(bos))]
    )
    return SelectiveTokenizer(
        tokenizer_object=backend,
        blank_before_text=model.normalizer_spec.add_dummy_prefix,
        bos_token=bos,
        eos_token=special["eos"],
        pad_token=special["pad"],
        unk_token=model.pieces[model.trainer_spec.unk_id].piece,
        split_special_tokens=True,  # a text that says "<s>" (HTML does) is text, as for SentencePiece
        clean_up_tokenization_spaces=False,
    )


def _new_model() -> Any:
    from sentencepiece import sentencepiece_model_pb2 as proto

    return proto.ModelProto()  # type: ignore[attr-defined]  # the class is made at run time


def _unigram(model: Any) -> models.Unigram:
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    return models.Unigram(pieces, unk_id=model.trainer_spec.unk_id, byte_fallback=model.trainer_spec.byte_fallback)


def _bpe(model: Any) -> models.BPE:
    """SentencePiece joins the pair whose piece scores highest; here pairs are ranked, so in the order of the scores."""
    ids = {piece.piece: number for number, piece in enumerate(model.pieces)}
    pairs = []
    for piece in model.pieces:
        if piece.type not in (_UNKNOWN, _CONTROL, _BYTE):
            cuts = ((piece.piece[:cut], piece.piece[cut:]) for cut in range(1, len(piece.piece)))
            pairs += [(-piece.score, ids[a], ids[b], a, b) for a, b in cuts if a in ids and b in ids]
    merges = [(a, b) for *_, a, b in sorted(pairs)]
    unknown = model.pieces[model.trainer_spec.unk_id].piece
    return models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=model.trainer_spec.byte_fallback)


def _never_text(model: Any) -> str:
    """Matches the first character of what looks like a special piece, "<s>" or "<0x41>", but stands in a text.

    With a border behind that character the rest of it cannot be taken for the piece.
    """
    special = [piece.piece for piece in model.pieces if piece.type in (_UNKNOWN, _CONTROL, _BYTE)]
    return "|".join(f"{re.escape(piece[0])}(?={re.escape(piece[1:])})" for piece in special)


def _normalizers(spec: Any) -> list[normalizers.Normalizer]:
    """The normalization of SentencePiece, before it looks for pieces."""
    steps: list[normalizers.Normalizer] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(_BLANK))
    return [*steps, normalizers.Replace(" ", _BLANK)]


def sentencepiece_from_llama2c(path: str | Path) -> bytes:
    """A llama2.c tokenizer (`tok512.bin`) as the SentencePiece model, a BPE, that it was exported from.

        int32 longest piece, then for each token: fp32 score, int32 length, its bytes

    Ids 0, 1 and 2 are <unk>, <s> and </s>, then come 256 bytes, then the pieces, with plain blanks. llama2.c trains on
    documents that begin with <s> and stand one behind the other, and its programs stop at the next <s>: so <BOS> and
    <EOS> are both <s>. </s> never occurs and serves for padding.
    """
    require("sentencepiece")
    path, special = Path(path), ("<unk>", "<s>", "</s>")
    model = _new_model()
    for number, (piece, score) in enumerate(_read_llama2c(path)):
        if number < 3:
            model.pieces.add(piece=special[number], score=score, type=_CONTROL if number else _UNKNOWN)
        elif number < 3 + 256:
            if piece != f"<0x{number - 3:02X}>":
                raise SelattnError(f"{path} is not a llama2.c tokenizer: token {number} is {piece!r}, not a byte")
            model.pieces.add(piece=piece, score=score, type=_BYTE)
        else:
            model.pieces.add(piece=piece.replace(" ", _BLANK), score=score, type=_NORMAL)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type, trainer.vocab_size, trainer.byte_fallback = _BPE, len(model.pieces), True
    trainer.unk_id, trainer.bos_id, trainer.eos_id, trainer.pad_id = 0, 1, 1, 2
    trainer.eos_piece, trainer.pad_piece = special[1:]
    normalizer.name, normalizer.add_dummy_prefix, normalizer.escape_whitespaces = "identity", True, True
    normalizer.remove_extra_whitespaces = False
    return model.SerializeToString()


def _read_llama2c(path: Path) -> list[tuple[str, float]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SelattnError(f"cannot read {path}: {error.strerror}") from None
    tokens, place = [], 4
    try:
        while place < len(data):
            score, length = struct.unpack_from("<fi", data, place)
            place += 8 + length
            if length < 0 or place > len(data):
                raise ValueError
            tokens.append((data[place - length : place].decode("utf-8"), score))
    except (struct.error, ValueError):
        raise SelattnError(f"{path} is not a llama2.c tokenizer") from None
    if len(tokens) <= 3 + 256:
        raise SelattnError(f"{path} is not a llama2.c tokenizer: {len(tokens)} tokens are too few")
    return tokens
