"""Generating text with any model of the seam: many texts at once (`Engine`), one text (`continued`), and sampling.

    engine = Engine(model, model.new_cache(budgets, policy), rows=64)
    row = engine.add(prompt)                # takes a free row; its prompt is read in pieces, beside the other rows
    tokens = engine.step()                  # {row: token}: the next token of every row whose prompt was read
    tokens = engine.draft({row: proposal})  # {row: tokens}: the part of a proposal that agrees, and the next token
    engine.remove(row)                      # frees the row

Every text is written as it would be alone, by `generate()` with a batch of one. The cache owns budgets and policy.
Adding or removing a text costs the same however many rows there are.

Shapes: n new tokens, V tokens in the vocabulary.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from selattn.cache import DRAFT
from selattn.errors import NotFiniteError, SelattnError
from selattn.models.protocols import KVCache, LanguageModel

Choose = Callable[[Tensor], Tensor]  # from the logits [n, V] of n texts their next tokens [n]

_NAN = "the logits of the next token are NaN"


def greedy(logits: Tensor) -> Tensor:
    """The likeliest token of each text."""
    return logits.argmax(-1)


def sampler(
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Choose:
    """A function that draws tokens as `generate(do_sample=True)` does.

    Args:
        temperature: logits are divided by it.
        top_k: only among the `top_k` likeliest tokens.
        top_p: only among the likeliest tokens that have this probability together.
        generator: where the random numbers come from; torch's own by default.
    """
    change = LogitsProcessorList()
    if temperature != 1.0:
        change.append(TemperatureLogitsWarper(temperature))
    if top_k:
        change.append(TopKLogitsWarper(top_k))
    if top_p is not None:
        change.append(TopPLogitsWarper(top_p))

    def sample(logits: Tensor) -> Tensor:
        none = torch.empty(len(logits), 0, dtype=torch.int64)  # these changes do not read the texts so far
        probabilities = change(none, logits).softmax(-1)  # type: ignore[arg-type]  # typed as if all tensors were long
        return torch.multinomial(probabilities, 1, generator=generator).squeeze(-1)

    return sample


@dataclass
class _Text:
    """A text that is being written."""

    place: int  # its row of the cache
    choose: Choose
    prompt: list[int]  # what is not read yet
    length: int = 0  # tokens that the cache has seen
    logits: Tensor | None = None  # [V] after the prompt, from which the first token is chosen
    last: list[int] = field(default_factory=list)  # the token that was chosen last, which the cache has not seen yet


class Engine:
    """Each step writes the next token of every text, whenever the text joined.

    Args:
        model: what gives the logits.
        cache: an empty cache for that model, which the engine fills.
        choose: which token comes next; `add` may say otherwise for a text.
        rows: how many texts there can be at once.
        piece: tokens of prompts that one step reads at most.
    """

    def __init__(
        self, model: LanguageModel, cache: KVCache, choose: Choose = greedy, rows: int = 64, piece: int = 512
    ) -> None:
        if cache.get_seq_length():
            raise SelattnError(f"an engine begins with an empty cache, and this one holds {cache.rows} rows")
        if piece < 1:
            raise SelattnError(f"a piece of a prompt is at least 1 token, not {piece}")
        cache.reserve(rows)
        self.model, self.cache, self.choose, self.piece = model, cache, choose, piece
        self.ended: dict[int, str] = {}  # the texts that could not continue, and why; they were removed
        self._longest = getattr(getattr(model, "description", None), "longest", None)
        self._texts: dict[int, _Text] = {}
        self._free = list(range(cache.rows))[::-1]
        self._names = itertools.count()

    @property
    def rows(self) -> tuple[int, ...]:
        """The texts that are being written."""
        return tuple(self._texts)

    def length(self, row: int) -> int:
        """The tokens of a text so far, its prompt included."""
        self._check([row])
        text = self._texts[row]
        return text.length + len(text.prompt) + len(text.last)

    def add(self, prompt: Sequence[int] | Tensor, choose: Choose | None = None) -> int:
        """A new text that continues a prompt; steps read it, and then write."""
        ids = torch.as_tensor(prompt, dtype=torch.int64).flatten().tolist()
        if not ids:
            raise SelattnError("the prompt is empty: give at least one token")
        if self._longest is not None and len(ids) > self._longest:
            raise SelattnError(
                f"a prompt of {len(ids)} tokens is longer than the {self._longest} learned positions: cut it"
            )
        if not self._free:
            raise SelattnError(
                f"all {self.cache.rows} rows are taken: remove one, or make the engine with more (rows=...)"
            )
        row = next(self._names)
        self._texts[row] = _Text(self._free.pop(), choose or self.choose, ids)
        return row

    def remove(self, row: int) -> None:
        """Forget a text; its row is free."""
        self._check([row])
        place = self._texts.pop(row).place
        self.cache.clear_rows([place])
        self._free.append(place)

    def step(self, rows: Iterable[int] | None = None) -> dict[int, int]:
        """The next token of every text whose prompt was read; or of some texts, while the others wait.

        A text at the end of the learned positions gets none: it is removed, and `ended` says so.
        """
        some = list(self._texts if rows is None else rows)
        self._check(some)
        ready = self._read(self._end_longest(some))
        return {row: tokens[0] for row, tokens in self._write({row: [] for row in ready}).items()}

    def draft(self, proposals: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
        """The next token of every text, and before it the part of the text's proposal that agrees with its own tokens.

        A proposal is read in one forward, where steps would take one for each token. The rest of it is taken back from
        the cache, with all that it selected and evicted.
        """
        self._check(proposals)
        ready = self._read(self._end_longest(list(self._texts)))
        return self._write({row: list(proposals.get(row, ()))[: self._room(row)] for row in ready})

    def _end_longest(self, rows: list[int]) -> list[int]:
        """Remove the texts whose next token has no learned position; the others."""
        for row in rows:
            text = self._texts[row]
            if self._longest is not None and text.last and text.length >= self._longest:
                self.remove(row)
                self.ended[row] = (
                    f"the {self._longest} learned positions are used up: use a model with rotary positions"
                )
        return [row for row in rows if row in self._texts]

    def _room(self, row: int) -> int:
        """The tokens of a proposal that a forward can take after the last one of a text."""
        text = self._texts[row]
        if self._longest is None:
            return DRAFT - 1
        return min(DRAFT - 1, self._longest - text.length - len(text.last))

    def _read(self, rows: list[int]) -> list[int]:
        """Read a piece of the prompts, the oldest first; the texts whose prompts are read to the end."""
        pieces, left = {}, self.piece
        for row in rows:
            text = self._texts[row]
            if text.prompt and left:
                pieces[row] = text.prompt[:left]
                left -= len(pieces[row])
        for row, logits in self._forward(pieces).items():
            text, count = self._texts[row], len(pieces[row])
            text.length, text.prompt = text.length + count, text.prompt[count:]
            text.logits = None if text.prompt else logits[count - 1]
        for row in pieces:
            last = self._texts[row].logits
            if last is not None and _is_nan(last):
                self.remove(row)  # the others can continue
                raise NotFiniteError(_NAN)
        return [row for row in rows if not self._texts[row].prompt]

    def _write(self, proposals: dict[int, list[int]]) -> dict[int, list[int]]:
        """The next tokens of these texts: the part of a proposal that agrees, and one more."""
        fed = {row: self._texts[row].last + proposal for row, proposal in proposals.items()}
        fed = {row: tokens for row, tokens in fed.items() if tokens}
        drafts = any(proposals.values())
        places = [self._texts[row].place for row in fed]
        with self.cache.only(places) if drafts else nullcontext(), self.cache.drafting() if drafts else nullcontext():
            written = self._choose(proposals, self._forward(fed))
            taken = {row: len(self._texts[row].last) + len(tokens) - 1 for row, tokens in written.items()}
            if drafts:
                width = max(map(len, fed.values()))
                self.cache.roll_back([width - taken[row] for row in fed])
        for row, tokens in written.items():
            text = self._texts[row]
            text.length, text.logits, text.last = text.length + taken[row], None, tokens[-1:]
        return written

    @torch.no_grad()
    def _forward(self, fed: dict[int, list[int]]) -> dict[int, Tensor]:
        """[n, V] of each text: the logits after each token that it is fed."""
        if not fed:
            return {}
        rows, texts = list(fed.values()), [self._texts[row] for row in fed]
        width = max(map(len, rows))
        ids = torch.tensor([tokens + [0] * (width - len(tokens)) for tokens in rows])
        real = torch.tensor([[True] * len(tokens) + [False] * (width - len(tokens)) for tokens in rows])
        lengths = torch.tensor([[text.length] for text in texts])
        device = self.model.device
        with self.cache.only([text.place for text in texts]):
            result = self.model(
                ids.to(device),
                attention_mask=None if bool(real.all()) else real.to(device),
                position_ids=(lengths + torch.arange(width)).to(device),
                past_key_values=self.cache,
                use_cache=True,
            )
        return dict(zip(fed, result.logits.float(), strict=True))

    def _choose(self, proposals: dict[int, list[int]], logits: dict[int, Tensor]) -> dict[int, list[int]]:
        """The tokens of each text: one after another, as long as its proposal agrees."""
        written: dict[int, list[int]] = {row: [] for row in proposals}
        asked = list(proposals)
        while asked:
            together: dict[Choose, list[int]] = {}
            for row in asked:
                together.setdefault(self._texts[row].choose, []).append(row)
            for choose, some in together.items():
                following = torch.stack([self._next(row, len(written[row]), logits) for row in some])
                if following.device.type == "cpu" and _is_nan(following):  # a GPU would be waited for
                    raise NotFiniteError(_NAN)
                tokens = choose(following)
                for row, token in zip(some, tokens.tolist(), strict=True):
                    written[row].append(token)
            asked = [row for row in asked if written[row] == proposals[row][: len(written[row])]]
        return written

    def _next(self, row: int, written: int, logits: dict[int, Tensor]) -> Tensor:
        """[V] the logits of a text's next token, after `written` tokens of this step."""
        first = self._texts[row].logits
        if first is None:
            return logits[row][written]
        return logits[row][written - 1] if written else first

    def _check(self, rows: Iterable[int]) -> None:
        for row in rows:
            if row in self.ended:
                raise SelattnError(f"row {row} has ended: {self.ended[row]}")
            if row not in self._texts:
                raise SelattnError(f"there is no row {row!r}: the rows are {list(self._texts)}")


def continued(
    model: LanguageModel,
    prompt: Sequence[int] | Tensor,
    tokens: int,
    cache: KVCache | None = None,
    choose: Choose = greedy,
) -> Iterator[int]:
    """The tokens with which a model continues, one after another; one that ends a text is the last.

    Args:
        model: in evaluation mode.
        prompt: at least one token.
        tokens: how many, at most.
        cache: an empty one of `model.new_cache(budgets, policy)`; None for the model's own budgets and policy.
        choose: which token comes next, such as `greedy` or `sampler(...)`.
    """
    engine = Engine(model, model.new_cache() if cache is None else cache, choose, rows=1)
    row = engine.add(prompt)
    for _ in range(tokens):
        written = engine.step()
        if row in engine.ended:
            raise SelattnError(engine.ended[row])
        token = written[row]
        yield token
        if token in model.description.ends:
            return


def _is_nan(logits: Tensor) -> bool:
    """Whether logits choose no token: the largest of them would be the first that is no number."""
    return math.isnan(float(logits.sum())) and bool(logits.isnan().any())  # a sum takes a tenth of the time
