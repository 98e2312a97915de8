"""Decoding measured: tokens per second, and the bytes that the cache holds at the end."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch

from selattn.cache import Budgets, Policy, import_policy
from selattn.errors import NotFiniteError
from selattn.models.seam import LanguageModel


@dataclass(frozen=True)
class Decoding:
    """What a step and the cache cost once the context is nearly full.

    Attributes:
        tokens_per_second: of all sequences of the batch together, in the median step.
        quartiles: the same in the slower and in the faster quarter of the steps: half of them lie between these.
        cache_bytes: of all that the cache holds, with F and positions.
        full_bytes: of keys and values in a cache that drops nothing.
        batch: sequences at a time.
        context: tokens at the end.
    """

    tokens_per_second: float
    quartiles: tuple[float, float]
    cache_bytes: int
    full_bytes: int
    batch: int
    context: int


def measure_decoding(
    model: LanguageModel,
    context: int,
    batch: int = 1,
    steps: int = 32,
    seed: int = 0,
    budgets: Budgets | None = None,
    policy: str | Policy | None = None,
) -> Decoding:
    """Fill a cache with random tokens up to the last `steps`, then decode these one by one.

    Args:
        model: in evaluation mode.
        context: tokens at the end.
        batch: sequences at a time.
        steps: how many are timed.
        seed: of the tokens.
        budgets: K_l; None for the model's own.
        policy: who leaves when a layer is full; None for the model's own.
    """
    steps = min(steps, context - 1)
    ids = torch.randint(model.description.vocab_size, (batch, context), generator=torch.Generator().manual_seed(seed))
    ids = ids.to(model.device)
    cache, seconds = model.new_cache(budgets, None if policy is None else import_policy(policy)), []
    with torch.inference_mode():
        model(ids[:, : context - steps], past_key_values=cache, use_cache=True, logits_to_keep=1)
        for place in range(context - steps, context):
            began = time.perf_counter()
            found = model(ids[:, place : place + 1], past_key_values=cache, use_cache=True)
            _wait(model.device)
            seconds.append(time.perf_counter() - began)
    if bool(found.logits.isnan().any()):
        raise NotFiniteError("the logits of the next token are NaN")
    fast, middle, slow = statistics.quantiles(seconds, n=4, method="inclusive") if steps > 1 else 3 * seconds
    speeds = batch / middle, (batch / slow, batch / fast)
    return Decoding(*speeds, cache.nbytes(), cache.full_nbytes(), batch, context)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
