"""The adapter through which lm-eval scores a model: any language model, in its ordinary full forward."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any

from lm_eval.models.huggingface import HFLM
from torch import Tensor

from selattn.cache import Budgets, Policy
from selattn.errors import NotFiniteError
from selattn.models.protocols import LanguageModel

Request = tuple[Any, list[int], list[int]]  # lm-eval's key, the tokens before the choice, the choice's tokens


class Scorer(HFLM):
    """lm-eval's own, which fails at choices that are longer than the context: here they are scored in pieces.

    Each piece is half a context long and preceded by as much of the text as fits; the likelihoods add up. PIQA has
    choices of hundreds of words, which a small vocabulary makes longer than a short context.
    """

    def __init__(
        self, model: LanguageModel, tokenizer: Any, batch: int, budgets: Budgets | None, policy: Policy | None
    ) -> None:
        asked: Any = Asked(model, budgets, policy)
        super().__init__(
            pretrained=asked,
            tokenizer=tokenizer,
            batch_size=batch,
            max_length=model.description.context,
            backend="causal",
        )

    def _loglikelihood_tokens(self, requests: list[Request], **options: Any) -> list[tuple[float, bool]]:
        pieces = [self._pieces(request) for request in requests]
        found = super()._loglikelihood_tokens([piece for each in pieces for piece in each], **options)
        if any(math.isnan(likelihood) for likelihood, _ in found):
            raise NotFiniteError("the likelihood of a choice is NaN")
        ends = accumulate(map(len, pieces), initial=0)
        return [_sum(found[begin:end]) for begin, end in pairwise(ends)]

    def _pieces(self, request: Request) -> list[Request]:
        _, before, choice = request
        if len(choice) <= self.max_length:
            return [request]
        size = self.max_length // 2
        return [(None, before + choice[:at], choice[at : at + size]) for at in range(0, len(choice), size)]


class Asked:
    """A model as lm-eval calls it, with token ids alone: the budgets are in force, and no cache is made."""

    def __init__(self, model: LanguageModel, budgets: Budgets | None, policy: Policy | None) -> None:
        self.device, self.config, self.name_or_path = model.device, SimpleNamespace(model_type="selattn"), ""
        self._model, self._budgets, self._policy = model, budgets, policy

    def __call__(self, input_ids: Tensor) -> Any:
        return self._model(input_ids, use_cache=False, cache_budgets=self._budgets, cache_policy=self._policy)


def _sum(parts: list[tuple[float, bool]]) -> tuple[float, bool]:
    """log p of the whole, and whether greedy decoding would have said all of it."""
    return parts[0] if len(parts) == 1 else (sum(part[0] for part in parts), all(part[1] for part in parts))
