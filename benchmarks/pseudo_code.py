"""The listing of the paper, as a rival to time: word for word but for names and devices."""

from __future__ import annotations

import torch
from torch import Tensor


def literal(tensors: tuple[Tensor, ...], backward: bool = True) -> list[Tensor]:
    """The output for query, key, value, with their gradients for the output's gradient if wanted."""
    query, key, value, gradient = tensors
    n, device = query.shape[2], query.device
    with torch.set_grad_enabled(backward):
        logits = query @ key.mT / query.shape[-1] ** 0.5
        logits = logits.masked_fill(torch.ones(n, n, dtype=torch.bool, device=device).triu(1), -torch.inf)
        S = torch.relu(logits[:, 0])
        S = S * (1 - torch.eye(n, dtype=S.dtype, device=device))
        S = torch.cat([torch.zeros_like(S[..., :1]), S[..., 1:]], -1)
        S = torch.cat([torch.zeros_like(S[:, :1]), S[:, :-1]], 1)
        F = torch.cumsum(S, 1, dtype=torch.float32)  # in half precision it would be off by 1
        output = (logits - F[:, None]).softmax(-1).to(value.dtype) @ value
        return [output, *torch.autograd.grad(output, (query, key, value), gradient)] if backward else [output]
