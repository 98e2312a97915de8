"""The memory term of the loss, the paper's equation 2.

    epsilon * [sum over layers and sequences of max_i M_i] / (L * n)

n is the number of real tokens, L the number of layers that select. The kept fraction of a layer is its part of the
bracket divided by n, so the term is epsilon times the mean kept fraction.
"""

from __future__ import annotations

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


def real_tokens(shape: tuple[int, int], sequences: Sequences | None, like: Tensor) -> Tensor:
    """n, the number of tokens in a batch of this shape that are not padding."""
    if sequences is None:
        return torch.tensor(float(shape[0] * shape[1]), device=like.device)
    return sequences.real.expand(shape).sum().clamp(min=1).float()


def memory_term(kept: Tensor, epsilon: float) -> Tensor:
    """epsilon times the mean kept fraction of the layers that select (NaN marks the others); 0 if none does."""
    selects = ~kept.isnan()
    total = torch.where(selects, kept, 0.0).sum()
    return epsilon * total / selects.sum().clamp(min=1)


def share_of_labels(labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor | float:
    """The weight of a micro batch's term under gradient accumulation: its share of the labels, like the loss itself.

    A causal model's first label of each row is not predicted, so it is not counted, as the trainer does not count it.
    """
    if num_items_in_batch is None:
        return 1.0
    return (labels[..., 1:] != -100).sum() / num_items_in_batch
