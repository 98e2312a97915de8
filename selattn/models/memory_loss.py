"""The memory term of the loss, the paper's equation 2.

    epsilon * [sum over layers and sequences of max_i M_i] / (L * n)

n is the number of real tokens, L the number of layers that select. The kept fraction of a layer is its part of the
bracket divided by n, so the term is epsilon times the mean kept fraction.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from selattn.ops import Sequences


def kept_tokens(M: Tensor, sequences: Sequences | None) -> Tensor:
    """Sum over sequences of max_i M_i, from M [B, S, N]; the mean over several selection masks."""
    per_row = M.mean(1)
    if sequences is None:
        return per_row.amax(-1).sum()
    # One place for each token: those where a sequence begins collect the maximum of their sequence. Padding has M = 0
    # and goes to place 0, where it cannot win.
    start = torch.where(sequences.real, sequences.start, 0).expand_as(per_row)
    return torch.zeros_like(per_row).scatter_reduce(-1, start, per_row, "amax").sum()


def kept_fractions(kept: Sequence[Tensor | None], x: Tensor, sequences: Sequences | None) -> Tensor:
    """[L], `kept_tokens` of each layer over the real tokens of x [B, N, ...]; NaN for layers that do not select."""
    n = real_tokens(tuple(x.shape[:2]), sequences, x).to(x.device)
    none = torch.full_like(n, torch.nan)
    return torch.stack([none if tokens is None else tokens.to(n.device) / n for tokens in kept])  # layers have devices


def real_tokens(shape: tuple[int, ...], sequences: Sequences | None, like: Tensor) -> Tensor:
    """n, the number of tokens in a batch of this shape that are not padding."""
    if sequences is None:
        return torch.tensor(float(shape[0] * shape[1]), device=like.device)
    return sequences.real.expand(shape).sum().clamp(min=1).float()


def memory_term(kept: Tensor, epsilon: float) -> Tensor:
    """epsilon times the mean kept fraction of the layers that select (NaN marks the others); 0 if none does."""
    selects = ~kept.isnan()
    total = torch.where(selects, kept, 0.0).sum()
    return epsilon * total / selects.sum().clamp(min=1)


def share_of_labels(targets: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor | float:
    """The weight of a batch's term among those that one step sums up: its share of the labels, as for the loss itself.

    They are counted as the trainer counts them, so that the shares of a step add up to 1: over micro batches, and over
    processes too where it counts across them (it then multiplies the loss by their number, and DDP divides by it).

    Args:
        targets: what each token is to predict, -100 for nothing.
        num_items_in_batch: the labels of the whole step; None if the step has one batch.
    """
    if isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(targets.device)
    return 1.0 if num_items_in_batch is None else (targets != -100).sum() / num_items_in_batch
