"""T5's sentinels, <extra_id_0> and so on: tokens that stand for a span of text that was left out."""

from __future__ import annotations

import copy

from tokenizers import AddedToken

from selattn.data.tokenizer import Tokenizer

COUNT = 100  # as T5 has


def with_sentinels(tokenizer: Tokenizer, count: int = COUNT) -> Tokenizer:
    """The tokenizer with so many sentinels behind its last token, unless it has some; <extra_id_0> is the very last."""
    if sentinels_of(tokenizer):
        return tokenizer
    hf = copy.deepcopy(tokenizer.hf)
    hf.add_tokens([AddedToken(_name(k), special=True, normalized=False) for k in reversed(range(count))])
    return Tokenizer(hf, tokenizer.path)


def sentinels_of(tokenizer: Tokenizer) -> list[int]:
    """The ids of a tokenizer's sentinels, from <extra_id_0> on; none if it has none."""
    known = tokenizer.hf.get_vocab()
    found: list[int] = []
    while (name := _name(len(found))) in known:
        found.append(known[name])
    return found


def _name(number: int) -> str:
    return f"<extra_id_{number}>"
