"""One call of attention, checked and in canonical form: what every backend takes and what it gives back.

Shapes: B batch, H query heads, G key-value heads (H a multiple of G), N queries, M keys (M >= N, the queries are the
last N of the M positions), D head size, Dv value head size, S selection masks (H a multiple of S).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from selattn.ops.patterns import Pattern
from selattn.ops.selection import Selection


class Request(NamedTuple):
    """Everything that decides the result. Backends read it and change nothing."""

    query: Tensor  # [B, H, N, D]
    key: Tensor  # [B, G, M, D]
    value: Tensor  # [B, G, M, Dv]
    scale: float
    # What a query sees, beside causality.
    start: Tensor | None = None  # [B, M] `Sequences.start`
    until: Tensor | None = None  # [B, 1 or G, M] the row from which a key is gone
    window: int | None = None  # the last `window` tokens, the own one included
    pattern: Pattern | None = None
    mask: Tensor | None = None  # [B or 1, H or 1, N or 1, M or 1] bool, true where visible
    # What is done to the logits.
    bias: Tensor | None = None  # [B or 1, H or 1, N or 1, M or 1] added after scale and soft cap
    softcap: float | None = None
    dropout_p: float = 0.0
    # Selection; None is standard attention, F = 0.
    selection: Selection | None = None
    selection_query: Tensor | None = None  # [B, S, N, Ds] the separate bilinear form
    selection_key: Tensor | None = None  # [B, S, M, Ds]
    strength: Tensor | None = None  # 0-d; None is 1
    state: Tensor | None = None  # [B, S, M] what earlier queries selected; None is 0
    tau: float = 1.0
    tolerance: float = 2.0**-24  # of attention mass that a row may lose to columns that are left out
    # What is wanted beside the output.
    return_f: bool = False
    return_memory: bool = False
    return_state: bool = False
    return_weights: bool = False
    return_living: bool = False

    @property
    def offset(self) -> int:
        """The row of the first query, in key positions."""
        return self.key.shape[-2] - self.query.shape[-2]

    @property
    def masks(self) -> int:
        """S, the number of selection masks."""
        if self.selection is None:
            return 0
        return len(self.selection.heads) if self.selection_query is None else self.selection_query.shape[1]

    @property
    def needs_grad(self) -> bool:
        """Whether a backward pass can follow."""
        return any(x.requires_grad for x in self.differentiable)

    @property
    def differentiable(self) -> list[Tensor]:
        """The inputs that results have derivatives with respect to."""
        inputs = (self.query, self.key, self.value, self.bias, self.selection_query, self.selection_key, self.state)
        return [x for x in inputs if x is not None]


class Attention(NamedTuple):
    """What attention gives back; the parts that were not asked for are None.

    Attributes:
        output: [B, H, N, Dv].
        f: [B, S, N, M] the paper's F, fp32 or better. With the default single selection mask S is 1.
        memory: [B, S, N] the paper's M_i of each row.
        state: [B, S, M] what all queries so far have selected, from which a later call continues.
        weights: [B, H, N, M] the attention weights, before dropout.
        living: [B] the share of the visible pairs that was computed; below 1 where dead columns were left out.
        evicted_at: [B, P, M] the row from which a key is gone, with a budget (the operator itself has none).
    """

    output: Tensor
    f: Tensor | None = None
    memory: Tensor | None = None
    state: Tensor | None = None
    weights: Tensor | None = None
    living: Tensor | None = None
    evicted_at: Tensor | None = None
