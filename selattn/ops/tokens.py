"""The new tokens that a layer of the cache is given."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Tokens(NamedTuple):
    """What new tokens bring."""

    query: Tensor  # [B, H, n, D]
    key: Tensor  # [B, G, n, D]
    value: Tensor  # [B, G, n, Dv]
    real: Tensor | None = None  # [B, n] bool; None: all are
    selection_query: Tensor | None = None  # [B, S, n, Ds]
    selection_key: Tensor | None = None  # [B, S, n, Ds]

    def cut(self, begin: int, end: int) -> Tokens:
        """The tokens from `begin` up to `end`."""

        def part(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[..., begin:end, :]

        real = None if self.real is None else self.real[:, begin:end]
        q, k, v = (x[..., begin:end, :] for x in self[:3])
        return Tokens(q, k, v, real, part(self.selection_query), part(self.selection_key))
