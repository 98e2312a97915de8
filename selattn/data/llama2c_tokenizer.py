"""A llama2.c tokenizer (`tok512.bin`) as the SentencePiece model that it was exported from.

    int32 longest piece, then for each token: fp32 score, int32 length, its bytes

Ids 0, 1 and 2 are <unk>, <s> and </s>, then come 256 bytes, then the pieces, with plain blanks. It is a BPE model.
llama2.c trains on documents that begin with <s> and stand one behind the other, and its programs stop at the next <s>:
that is what ends a document. </s> never occurs, so it serves for padding.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from selattn.errors import SelattnError, require

_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_BPE = 2
_SPECIAL = ("<unk>", "<s>", "</s>")


def sentencepiece_from_llama2c(path: str | Path) -> bytes:
    """The model file, for `selattn.data.sentencepiece`: <BOS> and <EOS> are <s>, padding is </s>."""
    require("sentencepiece")
    from sentencepiece import sentencepiece_model_pb2 as proto

    path = Path(path)
    model: Any = proto.ModelProto()  # type: ignore[attr-defined]  # the class is made at run time
    for number, (piece, score) in enumerate(_read(path)):
        if number < len(_SPECIAL):
            kind, piece = _UNKNOWN if number == 0 else _CONTROL, _SPECIAL[number]
        elif number < len(_SPECIAL) + 256:
            kind = _BYTE
            if piece != f"<0x{number - len(_SPECIAL):02X}>":
                raise SelattnError(f"{path} is not a llama2.c tokenizer: token {number} is {piece!r}, not a byte")
        else:
            kind, piece = _NORMAL, piece.replace(" ", "▁")
        model.pieces.add(piece=piece, score=score, type=kind)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type, trainer.vocab_size, trainer.byte_fallback = _BPE, len(model.pieces), True
    trainer.unk_id, trainer.bos_id, trainer.eos_id, trainer.pad_id = 0, 1, 1, 2
    trainer.eos_piece, trainer.pad_piece = _SPECIAL[1], _SPECIAL[2]
    normalizer.name, normalizer.add_dummy_prefix, normalizer.escape_whitespaces = "identity", True, True
    normalizer.remove_extra_whitespaces = False
    return model.SerializeToString()


def _read(path: Path) -> list[tuple[str, float]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SelattnError(f"cannot read {path}: {error.strerror}") from None
    found, place = [], 4
    try:
        while place < len(data):
            score, length = struct.unpack_from("<fi", data, place)
            place += 8 + length
            if length < 0 or place > len(data):
                raise ValueError
            found.append((data[place - length : place].decode("utf-8"), score))
    except (struct.error, ValueError):
        raise SelattnError(f"{path} is not a llama2.c tokenizer") from None
    if len(found) <= len(_SPECIAL) + 256:
        raise SelattnError(f"{path} is not a llama2.c tokenizer: {len(found)} tokens are too few")
    return found
