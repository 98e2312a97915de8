"""Rows of text in batches that are always the same, whatever the number of processes or what is computed with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selattn.models.causal_lm import next_tokens


@dataclass(frozen=True)
class Batch:
    """Some rows.

    Attributes:
        input_ids: [B, N].
        wanted: [B, N], what each token is to predict, -100 for nothing.
        attention_mask: [B, N], or None without padding.
        position_ids: [B, N] that restart at each document of a packed row, or None.
        longest: tokens of its longest sequence: a budget of as many or more drops nothing.
    """

    input_ids: Tensor
    wanted: Tensor
    attention_mask: Tensor | None
    position_ids: Tensor | None
    longest: int

    @property
    def tokens(self) -> int:
        """How many tokens are predicted."""
        return int((self.wanted >= 0).sum())

    def to(self, device: torch.device) -> Batch:
        """The same batch with its tensors on a device."""
        tensors = (self.input_ids, self.wanted, self.attention_mask, self.position_ids)
        ids, wanted, mask, positions = (None if x is None else x.to(device) for x in tensors)
        assert ids is not None
        assert wanted is not None
        return Batch(ids, wanted, mask, positions, self.longest)


def make_batches(rows: Sequence[dict[str, Tensor]], size: int) -> list[Batch]:
    """Batches of rows of like length, the longest first: a batch of short rows costs little, or nothing."""
    lengths = [_longest(row) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (-lengths[i], i))
    return [
        _batch([rows[i] for i in order[start : start + size]], lengths[order[start]])
        for start in range(0, len(order), size)
    ]


def _batch(rows: list[dict[str, Tensor]], longest: int) -> Batch:
    columns = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    mask = columns.get("attention_mask")
    if mask is not None:
        end = int(mask.sum(-1).max())  # rows are padded on the right
        columns = {name: column[:, :end] for name, column in columns.items()}
        mask = None if bool(mask[:, :end].all()) else columns["attention_mask"]
    return Batch(columns["input_ids"], next_tokens(columns["labels"]), mask, columns.get("position_ids"), longest)


def _longest(row: dict[str, Tensor]) -> int:
    """Tokens of the longest sequence of a row."""
    if "position_ids" in row:
        return int(row["position_ids"].max()) + 1
    return int(row["attention_mask"].sum()) if "attention_mask" in row else len(row["input_ids"])
