"""A selecting form of its own, beside the attention of a stock model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from selattn.models.stock.settings import NewForm


class SelectingForm(nn.Module):
    """Queries and keys [B, S, N, size] whose products over sqrt(size) are W_q x . W_k x' / sqrt(size) + b.

    The bias is one more feature: sqrt(size) in the query, b in the key. So operator, kernels and cache know no bias.
    """

    def __init__(self, form: NewForm, hidden: int, masks: int, size: int, context: int) -> None:
        super().__init__()
        self.form, self.masks, self.size, self.context = form, masks, size, context
        self.q_proj = nn.Linear(hidden, masks * (size - 1), bias=False)
        self.k_proj = nn.Linear(hidden, masks * (size - 1), bias=False)
        self.bias = nn.Parameter(torch.empty(masks))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """W_k = 0, W_q ~ N(0, deviation), b = 2.5 / N; see `NewForm`."""
        nn.init.normal_(self.q_proj.weight, std=self.form.deviation)
        nn.init.zeros_(self.k_proj.weight)
        nn.init.constant_(self.bias, 2.5 / self.context if self.form.bias is None else self.form.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, N, hidden] to queries and keys."""
        query, key = (self._by_mask(project(x)) for project in (self.q_proj, self.k_proj))
        ones = torch.full_like(query[..., :1], self.size**0.5)
        bias = self.bias.to(key.dtype)[:, None, None].expand_as(key[..., :1])
        return torch.cat([query, ones], -1), torch.cat([key, bias], -1)

    def _by_mask(self, x: Tensor) -> Tensor:
        """[B, N, S * size] to [B, S, N, size]."""
        return x.unflatten(-1, (self.masks, -1)).transpose(1, 2)
