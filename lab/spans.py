"""Span corruption, T5's training task (Raffel et al., 2020): spans of a text are left out, and to be said again.

    text     Thank you for inviting me to your party last week
    inputs   Thank you <extra_id_0> me to your party <extra_id_1> </s>
    labels   <extra_id_0> for inviting <extra_id_1> last week </s>

As in T5 documents stand one after another, and are cut into rows of equal length; of each row the same number of
tokens is noise, in the same number of spans, so that no row needs padding.
Which tokens are noise is a pure function of (seed, sample): a row that comes again in another epoch has other noise.
"""

from __future__ import annotations

import bisect
import copy
import functools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken
from torch import Tensor
from torch.utils.data import Dataset

from selattn.data.draws import Draw, check_seed, shuffled
from selattn.data.store import TokenStore
from selattn.data.tokenizer import Tokenizer
from selattn.errors import SelattnError

_BOUND = 2**32 - 1
COUNT = 100  # sentinels, as T5 has


@dataclass(frozen=True)
class Spans:
    """How much of a text is noise.

    Args:
        context: tokens of the inputs, with a sentinel for each span and </s>.
        density: the share of a row's tokens that is noise.
        length: the mean length of a span of noise.
    """

    context: int = 512
    density: float = 0.15
    length: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.density < 1:
            raise SelattnError(f"the share of noise must be between 0 and 1, not {self.density}")
        if self.length < 1:
            raise SelattnError(f"the mean span must be at least 1 token, not {self.length}")
        if self._inputs(2) > self.context or not self.spans <= min(self.noise, self.tokens - self.noise):
            raise SelattnError(f"{self.context} tokens have no room for spans of {self.length} tokens: set more tokens")

    @functools.cached_property
    def tokens(self) -> int:
        """Tokens of a row's text: the most whose inputs fit into the context, as T5 has it (568 for 512)."""
        count = 2
        while self._inputs(count + 1) <= self.context:
            count += 1
        return count

    @functools.cached_property
    def noise(self) -> int:
        """Tokens of them that are noise."""
        return self._noise(self.tokens)

    @functools.cached_property
    def spans(self) -> int:
        """Spans that they are in."""
        return self._spans(self.tokens)

    @property
    def targets(self) -> int:
        """Tokens of the labels: the noise, a sentinel for each span, and </s> (114 for 512)."""
        return self.noise + self.spans + 1

    def _noise(self, tokens: int) -> int:
        return min(max(round(tokens * self.density), 1), tokens - 1)

    def _spans(self, tokens: int) -> int:
        return max(round(self._noise(tokens) / self.length), 1)

    def _inputs(self, tokens: int) -> int:
        return tokens - self._noise(tokens) + self._spans(tokens) + 1

    def mask(self, draw: Draw) -> NDArray[np.bool_]:
        """[tokens] bool, the noise: all ways to cut noise and text into their pieces are equally likely."""
        quiet = _pieces(draw, self.tokens - self.noise, self.spans)
        noisy = _pieces(draw, self.noise, self.spans)
        lengths = np.stack([quiet, noisy], 1).ravel()  # a row begins with text, as in T5
        return np.repeat(np.arange(2 * self.spans) % 2 == 1, lengths)


def _pieces(draw: Draw, count: int, pieces: int) -> NDArray[np.int64]:
    """The lengths, at least 1 each, of the pieces of a whole."""
    if pieces == 1:
        return np.array([count])
    cuts = np.sort(np.argsort(draw.below(_BOUND, count - 1)[0], kind="stable")[: pieces - 1]) + 1
    return np.diff(cuts, prepend=0, append=count)


def corrupt(
    text: NDArray[np.int64], noise: NDArray[np.bool_], sentinels: NDArray[np.int64], end: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Inputs and labels of a text whose tokens are noise where `noise` says so."""
    return _without(text, noise, sentinels, end), _without(text, ~noise, sentinels, end)


def _without(
    text: NDArray[np.int64], left_out: NDArray[np.bool_], sentinels: NDArray[np.int64], end: int
) -> NDArray[np.int64]:
    """The text with the k-th span that is left out replaced by sentinel k, and </s> at the end."""
    begins = left_out & ~np.concatenate([[False], left_out[:-1]])
    kept = np.where(begins, sentinels[np.maximum(begins.cumsum() - 1, 0)], text)
    return np.append(kept[~left_out | begins], end)


class TextRows:
    """The documents of a store one after another, without <BOS> and <EOS>, in rows of `tokens` tokens each."""

    def __init__(self, store: TokenStore, tokens: int) -> None:
        self.store, self.tokens = store, tokens
        self._marks = 1 if store.meta["eos_id"] is None else 2  # of each document
        total = len(store.tokens) - self._marks * len(store)
        self._rows = total // tokens
        if not self._rows:
            raise SelattnError(
                f"the corpus is smaller than one row: {total} tokens in {store.name}, and a row has {tokens}; "
                "give more text or a smaller context"
            )

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: int) -> NDArray[np.int64]:
        first, last = row * self.tokens, (row + 1) * self.tokens - 1
        begin, end = self._document(first), self._document(last)
        start, stop = (at + self._marks * of + 1 for at, of in ((first, begin), (last, end)))
        tokens = self.store.tokens[start : stop + 1].astype(np.int64)
        marks = self.store.offsets[begin + 1 : end + 1] - start  # where the next documents have their <BOS>
        return np.delete(tokens, np.concatenate([marks - back for back in range(self._marks)]))

    def _document(self, token: int) -> int:
        """The document that a token of the text belongs to."""
        offsets = self.store.offsets
        before = bisect.bisect_right(range(len(self.store)), token, key=lambda d: int(offsets[d]) - self._marks * d)
        return before - 1


class SpanSamples(Dataset[dict[str, Tensor]]):
    """Samples of span corruption; sample i is a pure function of (seed, i).

    Args:
        rows: of text.
        spans: how much of each is noise.
        sentinels: ids of <extra_id_0>, <extra_id_1> and so on, at least as many as there are spans.
        end: the id of </s>.
        seed: of the noise, and of the order.
        size: samples in all, over as many epochs as that takes, each in another order; None for each row once.
    """

    def __init__(
        self, rows: TextRows, spans: Spans, sentinels: list[int], end: int, seed: int, size: int | None = None
    ) -> None:
        if len(sentinels) < spans.spans:
            raise SelattnError(
                f"a row has {spans.spans} spans of noise and the tokenizer {len(sentinels)} sentinels: "
                "set a smaller context, less noise, or longer spans"
            )
        self.rows, self.spans, self.end, self.seed = rows, spans, end, check_seed(seed)
        self.sentinels = np.array(sentinels)
        self.shuffles, self.size = size is not None, len(rows) if size is None else size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < self.size:
            raise IndexError(f"sample {index} of {self.size}")
        epoch, place = divmod(index, len(self.rows))
        row = shuffled(place, len(self.rows), self.seed, epoch) if self.shuffles else index
        noise = self.spans.mask(Draw(self.seed, [index]))
        inputs, labels = (torch.from_numpy(x) for x in corrupt(self.rows[row], noise, self.sentinels, self.end))
        return {
            "input_ids": inputs,
            "attention_mask": torch.ones_like(inputs),
            "labels": labels,
            "decoder_attention_mask": torch.ones_like(labels),
        }


def with_sentinels(tokenizer: Tokenizer, count: int = COUNT) -> Tokenizer:
    """The tokenizer with sentinels behind its last token, unless it has some; <extra_id_0> is the very last."""
    if sentinels_of(tokenizer):
        return tokenizer
    hf = copy.deepcopy(tokenizer.hf)
    hf.add_tokens([AddedToken(_sentinel(k), special=True, normalized=False) for k in reversed(range(count))])
    return Tokenizer(hf, tokenizer.path)


def sentinels_of(tokenizer: Tokenizer) -> list[int]:
    """The ids of a tokenizer's sentinels, from <extra_id_0> on; none if it has none."""
    known = tokenizer.hf.get_vocab()
    ids: list[int] = []
    while (name := _sentinel(len(ids))) in known:
        ids.append(known[name])
    return ids


def _sentinel(number: int) -> str:
    return f"<extra_id_{number}>"
