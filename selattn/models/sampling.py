"""Which token comes next: functions of the logits [n, V] of n texts, which give the tokens [n]."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

Choose = Callable[[Tensor], Tensor]


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
