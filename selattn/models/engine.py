"""One small engine: texts that join, go on and leave independently, over one model and one cache.

    engine = Engine(model, model.new_cache(budgets, policy))
    row = engine.add(prompt)                # prefill
    tokens = engine.step()                  # {row: token}: the next token of every row
    tokens = engine.draft({row: proposal})  # {row: tokens}: as much of a proposal as is right, and the next token
    engine.remove(row)                      # the others go on

Every row is written as it would be alone, by `generate()` with a batch of one. The cache owns budgets and policy.

Shapes: R rows, n new tokens, V tokens in the vocabulary.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from selattn.cache import DRAFT
from selattn.errors import NotFiniteError, SelattnError
from selattn.models.sampling import Choose, greedy
from selattn.models.seam import KVCache, LanguageModel


@dataclass
class _Row:
    """A text that is being written."""

    choose: Choose
    length: int  # tokens that the cache has seen
    logits: Tensor | None  # [V] after a prompt, from which the first token is chosen
    last: list[int] = field(default_factory=list)  # the token that was chosen last, which the cache has not seen yet


class Engine:
    """Continuous batching: each step writes the next token of every row, whenever the row joined.

    Args:
        model: what gives the logits.
        cache: an empty cache for that model, which the engine fills.
        choose: which token comes next; `add` may say otherwise for a row.
    """

    def __init__(self, model: LanguageModel, cache: KVCache, choose: Choose = greedy) -> None:
        if cache.rows:
            raise SelattnError(f"an engine begins with an empty cache, and this one holds {cache.rows} rows")
        self.model, self.cache, self.choose = model, cache, choose
        self._rows: dict[int, _Row] = {}  # in the order of the cache's rows
        self._names = itertools.count()

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows that are being written."""
        return tuple(self._rows)

    def length(self, row: int) -> int:
        """The tokens of a row so far, its prompt included."""
        self._check([row])
        return self._rows[row].length + len(self._rows[row].last)

    def add(self, prompt: Sequence[int] | Tensor, choose: Choose | None = None) -> int:
        """A new row that continues a prompt; its first token comes with the next step."""
        ids = torch.as_tensor(prompt, dtype=torch.int64, device=self.model.device).flatten()
        if not len(ids):
            raise SelattnError("the prompt is empty: give at least one token")
        alone = self.cache.new_like()
        with torch.no_grad():
            found = self.model(ids[None], past_key_values=alone, use_cache=True, logits_to_keep=1)
        logits = found.logits[0, -1].float()
        _refuse_nan(logits)
        self.cache.append(alone)
        row = next(self._names)
        self._rows[row] = _Row(choose or self.choose, len(ids), logits)
        return row

    def remove(self, row: int) -> None:
        """Forget a row; the others go on."""
        self._check([row])
        stay = [index for index, each in enumerate(self._rows) if each != row]
        del self._rows[row]
        self.cache.batch_select_indices(torch.tensor(stay, dtype=torch.int64))

    def step(self, rows: Iterable[int] | None = None) -> dict[int, int]:
        """The next token of every row; or of some rows, while the others wait."""
        some = self._rows if rows is None else rows
        return {row: tokens[0] for row, tokens in self._advance({row: [] for row in some}).items()}

    def draft(self, proposals: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
        """The next token of every row, and before it as much of the row's proposal as it would have written itself.

        A proposal is read in one forward, where steps would take as many as it has tokens. What is not right of it is
        taken back from the cache, with all that it selected and evicted.
        """
        self._check(proposals)
        return self._advance({row: list(proposals.get(row, ()))[: DRAFT - 1] for row in self._rows})

    def _advance(self, proposals: dict[int, list[int]]) -> dict[int, list[int]]:
        """The tokens that these rows go on with: all of a proposal that is right, and one more."""
        self._check(proposals)
        fed = {row: self._rows[row].last + proposal for row, proposal in proposals.items()}
        drafts = any(proposals.values())
        with torch.no_grad(), self.cache.drafting() if drafts else nullcontext():
            written = self._choose(proposals, self._forward(fed))
            taken = {row: len(self._rows[row].last) + len(tokens) - 1 for row, tokens in written.items()}
            if drafts:
                width = max(map(len, fed.values()))
                self.cache.roll_back([width - taken[row] if fed.get(row) else 0 for row in self._rows])
        for row, tokens in written.items():
            found = self._rows[row]
            found.length, found.logits, found.last = found.length + taken[row], None, tokens[-1:]
        return written

    def _forward(self, fed: dict[int, list[int]]) -> dict[int, Tensor]:
        """[n, V] of each row: the logits after each token that it is fed. Rows that are fed nothing sit out."""
        rows = [fed.get(row, []) for row in self._rows]
        width = max(map(len, rows), default=0)
        if not width:
            return {}
        ids = torch.tensor([tokens + [0] * (width - len(tokens)) for tokens in rows])
        real = torch.tensor([[True] * len(tokens) + [False] * (width - len(tokens)) for tokens in rows])
        lengths = torch.tensor([[row.length] for row in self._rows.values()])
        ragged = any(0 < len(tokens) < width for tokens in rows)
        device = self.model.device
        with self.cache.only([index for index, tokens in enumerate(rows) if tokens]):
            found = self.model(
                ids.to(device),
                attention_mask=real.to(device) if ragged else None,
                position_ids=(lengths + torch.arange(width)).to(device),
                past_key_values=self.cache,
                use_cache=True,
            )
        return dict(zip(self._rows, found.logits.float(), strict=True))

    def _choose(self, proposals: dict[int, list[int]], logits: dict[int, Tensor]) -> dict[int, list[int]]:
        """The tokens of each row: it is asked for one after another, as long as its proposal is right."""
        written: dict[int, list[int]] = {row: [] for row in proposals}
        asked = list(proposals)
        while asked:
            together: dict[Choose, list[int]] = {}
            for row in asked:
                together.setdefault(self._rows[row].choose, []).append(row)
            for choose, some in together.items():
                found = torch.stack([self._next(row, len(written[row]), logits) for row in some])
                if found.device.type == "cpu":  # a GPU would be waited for
                    _refuse_nan(found)
                tokens = choose(found)
                for row, token in zip(some, tokens.tolist(), strict=True):
                    written[row].append(token)
            asked = [row for row in asked if written[row] == proposals[row][: len(written[row])]]
        return written

    def _next(self, row: int, written: int, logits: dict[int, Tensor]) -> Tensor:
        """[V] the logits of a row's next token, after so many that were written in this step."""
        first = self._rows[row].logits
        if first is None:
            return logits[row][written]
        return logits[row][written - 1] if written else first

    def _check(self, rows: Iterable[int]) -> None:
        for row in rows:
            if row not in self._rows:
                raise SelattnError(f"there is no row {row!r}: the rows are {list(self._rows)}")


def _refuse_nan(logits: Tensor) -> None:
    """Raise for logits that choose no token: the largest of them would be the first that is no number."""
    if math.isnan(float(logits.sum())) and bool(logits.isnan().any()):  # a sum takes a tenth of the time
        raise NotFiniteError("the logits of the next token are NaN")
