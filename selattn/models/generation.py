"""Continuing one text, with any model of the seam: what `selattn generate` does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from selattn.models.engine import Engine
from selattn.models.sampling import Choose, greedy
from selattn.models.seam import KVCache, LanguageModel


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
        choose: which token comes next, see `selattn.models.sampling`.
    """
    engine = Engine(model, model.new_cache() if cache is None else cache, choose, rows=1)
    row = engine.add(prompt)
    for _ in range(tokens):
        token = engine.step()[row]
        yield token
        if token in model.description.ends:
            return
