"""A SentencePiece model (unigram or BPE) as a tokenizer of transformers: at run time there is no other.

`AutoTokenizer.from_pretrained` reads it back, without selattn too. The tokens are those of SentencePiece but for near
ties of a unigram model: SentencePiece adds the scores of a whole document in single precision, so the rounding of a
long one can decide between two ways to split a word, where this one adds in double precision and splits it as it does
alone. `benchmarks/splitting.py` counts how often that happens.
"""

from __future__ import annotations

import re
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from selattn.data.selective_tokenizer import SelectiveTokenizer
from selattn.errors import SelattnError, require

_UNIGRAM, _BPE = 1, 2
_UNKNOWN, _CONTROL, _BYTE = 2, 3, 6  # types of pieces that SentencePiece does not look for in a text
_BLANK = "▁"  # how SentencePiece writes a blank
_ADDED = {"pad": "<pad>", "eos": "</s>", "bos": "<s>"}  # in the order in which missing ones are numbered


def from_sentencepiece(file: bytes, name: str) -> SelectiveTokenizer:
    """Convert a model file; a text gets <BOS> in front, as every row in training has, and no <EOS>.

    A special token that the model lacks (T5's has no <BOS>) gets an id behind the last piece.

    Args:
        file: what the model file holds.
        name: of the file, for messages.
    """
    require("sentencepiece")
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as proto

    pieces = sentencepiece.SentencePieceProcessor()
    try:
        pieces.LoadFromSerializedProto(file)
    except RuntimeError:
        raise SelattnError(f"{name} is not a SentencePiece model") from None
    model: Any = proto.ModelProto()  # type: ignore[attr-defined]  # the class is made at run time
    model.ParseFromString(file)
    if model.trainer_spec.model_type not in (_UNIGRAM, _BPE):
        raise SelattnError(f"{name} is neither unigram nor BPE: only those can be used with transformers")
    backend = Tokenizer(_unigram(model) if model.trainer_spec.model_type == _UNIGRAM else _bpe(model))
    backend.normalizer = normalizers.Sequence(_normalizers(model.normalizer_spec))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_never_text(model)), "isolated")
    backend.decoder = decoders.Sequence([decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse()])
    special = {kind: _special(pieces, kind) for kind in _ADDED}
    for token in special.values():  # those that exist keep their ids, the others are numbered in this order
        backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])
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


def _special(pieces: Any, kind: str) -> str:
    """What a special token is called: as in the model, or as we add it."""
    number: int = getattr(pieces, f"{kind}_id")()
    return _ADDED[kind] if number < 0 else pieces.id_to_piece(number)


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
    """What SentencePiece does to a text before it looks for pieces."""
    steps: list[normalizers.Normalizer] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(_BLANK))
    return [*steps, normalizers.Replace(" ", _BLANK)]
