"""The tokens of a layer in the order of their positions, the form in which many queries at once are served.

Entries are numbered; queries are the last ones. A token that leaves is marked with the row from which it is gone, so
that evictions can be taken back until `compact` makes them final.

Shapes: E entries; P independent eviction orders, 1 or the number G of key-value heads; S selection masks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as nnf

from selattn.ops.order import NEVER


@dataclass(frozen=True)
class Entries:
    """E tokens of a layer."""

    keys: Tensor  # [B, G, E, D]
    values: Tensor  # [B, G, E, Dv]
    positions: Tensor  # [B, E] int64 in the sequence, -1 for padding and empty places
    until: Tensor  # [B, P, E] int64, the row from which an entry is gone; 0 if this order does not hold it, else NEVER
    f: Tensor  # [B, S, E] F
    score: Tensor  # [B, P, E] the policy's
    selection_keys: Tensor | None  # [B, S, E, Ds] of a separate bilinear form

    @property
    def size(self) -> int:
        """How many entries there are, E."""
        return self.positions.shape[-1]

    def append(self, keys: Tensor, values: Tensor, positions: Tensor, selection_keys: Tensor | None) -> Entries:
        """New tokens after the old ones: not selected, not scored, not gone."""
        more = positions.shape[-1]
        new_selection = selection_keys
        if self.selection_keys is not None and selection_keys is not None:
            new_selection = torch.cat([self.selection_keys, selection_keys], -2)
        return Entries(
            torch.cat([self.keys, keys], -2),
            torch.cat([self.values, values], -2),
            torch.cat([self.positions, positions], -1),
            nnf.pad(self.until, (0, more), value=NEVER),
            nnf.pad(self.f, (0, more)),
            nnf.pad(self.score, (0, more)),
            new_selection,
        )

    def without_last(self, remove: Tensor, f: Tensor, score: Tensor) -> Entries:
        """As if each row had no last `remove` [B] entries: they are empty, and evictions by them have not happened."""
        size = self.size - remove[:, None]
        index = torch.arange(self.size, device=size.device)
        return dataclasses.replace(
            self,
            positions=self.positions.masked_fill(index >= size, -1),
            until=self.until.masked_fill(self.until >= size[:, None], NEVER),
            f=f,
            score=score,
        )

    def rows(self, change: Callable[[Tensor], Tensor]) -> Entries:
        """The same change of the batch dimension for every tensor."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return dataclasses.replace(self, **{name: change(x) for name, x in fields.items() if x is not None})

    def kept(self) -> Tensor:
        """[B, P, E] bool: what is there after the last row."""
        return (self.positions[:, None] >= 0) & (self.until >= self.size)
