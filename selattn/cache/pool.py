"""The storage of one layer: R rows of C slots, and the one owner of its keys and values.

A row holds the tokens that are kept of one text. A step of decoding is told which rows it is about and writes into
their slots, strided as they may be: a serving engine can hand in its own memory. Other rows are neither read nor
copied.

Shapes: R rows; C slots; P independent eviction orders, 1 or the number G of key-value heads; S selection masks; O
orders in which a mask selects, 1 (its own) or P.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf

from selattn.errors import SelattnError
from selattn.ops.eviction import masks_of_orders, smallest_f, stands_alone
from selattn.ops.request import Tokens
from selattn.ops.rules import Rules

SPARE = 8  # free slots of a row that grows, at least
SHARE = 8  # beyond that, one for every 8 tokens: storage is copied seldom enough to cost little


@dataclass
class Pool:
    """The tensors of a layer.

    Attributes:
        keys, values: [R, G, C, D] and [R, G, C, Dv].
        position: [R, P, C] int32 in the text; -1 for an empty slot.
        f: [R, S, O, C] F, in fp32 or better.
        score: [R, P, C] of a policy that needs attention weights; else no slots.
        selection_keys: [R, S * O, C, Ds] of a separate bilinear form.
        length: [R] int64, tokens that a row has seen.
        seen: [R] int64 on the CPU, the same with padding.
        heads: H, query heads.
        stands_alone: whether each order and its masks have nothing to do with the others.
        scored: whether there are scores.
    """

    keys: Tensor
    values: Tensor
    position: Tensor
    f: Tensor
    score: Tensor
    selection_keys: Tensor | None
    length: Tensor
    seen: Tensor
    heads: int = 1
    stands_alone: bool = False
    scored: bool = False

    def __post_init__(self) -> None:
        if not torch.compiler.is_compiling():
            for name, x in self.tensors().items():
                if x.numel() and not x[0].is_contiguous():
                    raise SelattnError(f"the {name} of a row must lie side by side; the rows may lie apart")

    @classmethod
    def empty(cls, tokens: Tokens, rules: Rules, per_head: bool, scored: bool, rows: int, slots: int) -> Pool:
        """Empty rows for tokens like these.

        Args:
            per_head: each key-value head evicts on its own.
            scored: the policy keeps a score for each token.
        """
        key, value, selection_key = tokens.key, tokens.value, tokens.selection_key
        groups, heads = key.shape[1], tokens.query.shape[1]
        orders, masks = groups if per_head else 1, rules.masks(tokens.selection_query)
        alone = stands_alone(rules, tokens.selection_query is not None, masks, orders, heads)
        own = 1 if alone else orders
        exact = torch.float64 if key.dtype == torch.float64 else torch.float32

        def zeros(*shape: int, dtype: torch.dtype = key.dtype) -> Tensor:
            return torch.zeros(rows, *shape, dtype=dtype, device=key.device)

        return cls(
            zeros(groups, slots, key.shape[-1]),
            zeros(groups, slots, value.shape[-1], dtype=value.dtype),
            zeros(orders, slots, dtype=torch.int32) - 1,
            zeros(masks, own, slots, dtype=exact),
            zeros(orders, slots if scored else 0, dtype=exact),
            None
            if selection_key is None
            else zeros(masks * own, slots, selection_key.shape[-1], dtype=selection_key.dtype),
            zeros(dtype=torch.int64),
            torch.zeros(rows, dtype=torch.int64),
            heads,
            alone,
            scored,
        )

    @property
    def rows(self) -> int:
        """R."""
        return self.length.shape[0]

    @property
    def slots(self) -> int:
        """C."""
        return self.position.shape[-1]

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: x for name, x in named.items() if isinstance(x, Tensor)}

    def changed(self, change: Callable[[Tensor], Tensor]) -> Pool:
        """The same change of the rows of every tensor."""
        changed: dict[str, Any] = {name: change(x) for name, x in self.tensors().items()}
        return replace(self, **changed)

    def of(self, rows: Tensor | None) -> Pool:
        """Some rows, copied; None: the pool itself."""
        return self if rows is None else self.changed(lambda x: x[rows.to(x.device)])

    def resized(self, slots: int) -> Pool:
        """The rows with another number of slots: new ones are empty, and what lies behind the last is cut off."""
        more = slots - self.slots

        def pad(x: Tensor, behind: int, value: int = 0) -> Tensor:
            # A copy, so that what is cut off is freed; and dense, as new storage is.
            return nnf.pad(x, (0, 0) * behind + (0, more), value=value).contiguous()

        return replace(
            self,
            keys=pad(self.keys, 1),
            values=pad(self.values, 1),
            position=pad(self.position, 0, -1),
            f=pad(self.f, 0),
            score=pad(self.score, 0) if self.scored else self.score,
            selection_keys=None if self.selection_keys is None else pad(self.selection_keys, 1),
        )

    def extended(self, rows: int) -> Pool:
        """With this many rows; the new ones are empty."""
        made = self.changed(lambda x: torch.cat([x, x.new_zeros(rows - self.rows, *x.shape[1:])]))
        made.position[self.rows :] = -1
        return made

    def clear(self, rows: Tensor) -> None:
        """Empty some rows; nothing of an old text stays behind."""
        for name, x in self.tensors().items():
            x[rows.to(x.device)] = -1 if name == "position" else 0

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Rows `target` become copies of rows `source`."""
        for x in self.tensors().values():
            x[target.to(x.device)] = x[source.to(x.device)]

    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(x.numel() * x.element_size() for x in self.tensors().values())

    def smallest_f(self) -> Tensor:
        """[R, 1 or P, C] F of each slot, the smallest of the masks that the heads of its order follow."""
        orders = self.position.shape[1]
        if self.f.shape[2] == 1:
            return smallest_f(self.f[:, :, 0], orders, self.heads)
        each = enumerate(masks_of_orders(orders, self.f.shape[1], self.heads))
        return torch.stack([self.f[:, masks, p].amin(1) for p, masks in each], 1)

    def by_mask(self, x: Tensor) -> Tensor:
        """[B, P, E] of orders as [B, S, O, E], like F: of the mask's own order, or of all."""
        masks, orders = self.f.shape[1], x.shape[1]
        if self.f.shape[2] == orders:
            return x[:, None].expand(-1, masks, -1, -1)
        return x[:, [s * orders // masks for s in range(masks)], None]


def growth(tokens: int, budget: int | None) -> int:
    """The slots of rows that need `tokens`."""
    wanted = tokens + max(SPARE, tokens // SHARE)
    return wanted if budget is None else min(wanted, budget)
