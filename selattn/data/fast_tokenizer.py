"""A SentencePiece model (unigram or BPE) as a tokenizer of transformers, which generation and lm-eval ask for.

`AutoTokenizer.from_pretrained` reads it back, without selattn too. The tokens are those of SentencePiece but for near
ties of a unigram model: SentencePiece adds the scores of a whole document in single precision, so the rounding of a
long one can decide between two ways to split a word, where this one adds in double precision.
"""

from __future__ import annotations

import re
from typing import Any

from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from selattn.data.tokenizer import Tokenizer
from selattn.errors import SelattnError
from selattn.models.tokenizer import SelectiveTokenizer

_UNIGRAM, _BPE = 1, 2
_UNKNOWN, _CONTROL, _BYTE = 2, 3, 6  # types of pieces that SentencePiece does not look for in a text
_BLANK = "▁"  # how SentencePiece writes a blank


def fast_tokenizer(tokenizer: Tokenizer) -> SelectiveTokenizer:
    """Convert; a text gets <BOS> in front, as every row in training has, and no <EOS>."""
    model: Any = proto.ModelProto()  # type: ignore[attr-defined]  # the class is made at run time
    model.ParseFromString(tokenizer.model_bytes())
    if model.trainer_spec.model_type not in (_UNIGRAM, _BPE):
        raise SelattnError(f"{tokenizer.path} is neither unigram nor BPE: only those can be used with transformers")
    backend = Backend(_unigram(model) if model.trainer_spec.model_type == _UNIGRAM else _bpe(model))
    backend.normalizer = normalizers.Sequence(_normalizers(model.normalizer_spec))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_never_text(model)), "isolated")
    backend.decoder = decoders.Sequence([decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse()])
    special = tokenizer.special_tokens
    for name in special.values():  # those that exist keep their ids, the others are numbered in this order
        backend.add_special_tokens([AddedToken(name, special=True, normalized=False)])
    bos = special["bos"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, tokenizer.bos_id)]
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
