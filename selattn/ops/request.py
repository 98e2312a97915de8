"""One call of attention, checked and in canonical form: what every backend takes and what it gives back.

Shapes: B batch, H query heads, G key-value heads (H a multiple of G), N queries, M keys (M >= N, the queries are the
last N of the M positions), D head size, Dv value head size, S selection masks (H a multiple of S).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from selattn.ops.rules import Rules


class AuxRequest(NamedTuple):
    """The results to return with the output; `AuxOutput` explains each."""

    f: bool = False
    memory: bool = False
    final_f: bool = False
    weights: bool = False
    living: bool = False

    def of(self, rules: Rules) -> AuxRequest:
        """The request without what attention by these rules does not have: without selection there is no F."""
        if rules.selection is not None or not (self.f or self.memory or self.final_f):
            return self
        return self._replace(f=False, memory=False, final_f=False)


NOTHING = AuxRequest()


class AuxOutput(NamedTuple):
    """Returned with the output; what was not asked for is None.

    Attributes:
        f: [B, S, N, M] the paper's F, fp32 or better. With the default single selection mask S is 1.
        memory: [B, S, N] the paper's M_i of each row.
        final_f: [B, S, M] F with which a next query would begin: what all queries so far have selected.
        weights: [B, H, N, M] the attention weights, before dropout.
        living: [B] the share of the visible pairs that was computed; below 1 where dead columns were left out.
    """

    f: Tensor | None = None
    memory: Tensor | None = None
    final_f: Tensor | None = None
    weights: Tensor | None = None
    living: Tensor | None = None


class Attention(NamedTuple):
    """The result of attention.

    Attributes:
        output: [B, H, N, Dv].
        aux: what else was asked for.
        evicted_at: [B, P, M] the row from which a key is evicted, where there is a budget (a cache has one).
    """

    output: Tensor
    aux: AuxOutput = AuxOutput()
    evicted_at: Tensor | None = None


class Request(NamedTuple):
    """Everything that decides the result. Backends read it and change nothing."""

    query: Tensor  # [B, H, N, D]
    key: Tensor  # [B, G, M, D]
    value: Tensor  # [B, G, M, Dv]
    rules: Rules = Rules()
    wanted: AuxRequest = NOTHING
    # What a query sees, apart from causality and the rules.
    start: Tensor | None = None  # [B, M] `Sequences.start`
    until: Tensor | None = None  # [B, 1 or G, M] the row from which a key is evicted
    mask: Tensor | None = None  # [B or 1, H or 1, N or 1, M or 1] bool, true where visible
    bias: Tensor | None = None  # [B or 1, H or 1, N or 1, M or 1] added to the logits after scale and soft cap
    selection_query: Tensor | None = None  # [B, S, N, Ds] the separate bilinear form
    selection_key: Tensor | None = None  # [B, S, M, Ds]
    initial_f: Tensor | None = None  # [B, S, M] F with which the first query begins; None is 0
    # For a registered operator.
    seed: Tensor | None = None  # 0-d int64, of the dropout
    gradient: bool = False  # a backward pass can follow

    @property
    def offset(self) -> int:
        """The row of the first query, in key positions."""
        return self.key.shape[-2] - self.query.shape[-2]

    @property
    def scale(self) -> float:
        """The factor of Q K^T."""
        return self.rules.scale_of(self.query)

    @property
    def strength(self) -> Tensor | None:
        """The factor of S, 0-d; None is 1."""
        return self.rules.strength_of(self.query)

    @property
    def masks(self) -> int:
        """S, the number of selection masks."""
        return self.rules.masks(self.selection_query)

    @property
    def needs_grad(self) -> bool:
        """Whether a backward pass can follow."""
        if not torch.is_grad_enabled():
            return False
        form = (self.selection_query, self.selection_key)
        for x in (self.query, self.key, self.value, self.bias, *form, self.initial_f):
            if x is not None and x.requires_grad:
                return True
        return False

    def ranks(self) -> Tensor:
        """[B or 1, M] how many real tokens a row of the batch has up to each: what a window counts."""
        if self.start is None:
            return torch.arange(1, self.key.shape[2] + 1, device=self.key.device)[None]
        return (self.start < self.start.shape[-1]).long().cumsum(-1)

    def without_padding(self) -> Request:
        """The request with zeros in all padding: 0 * NaN is NaN, so a weight of 0 would not keep padding out."""
        if self.start is None:
            return self
        keys = (self.start >= self.key.shape[2])[:, None, :, None]
        rows = keys[:, :, self.offset :]
        hidden = {"query": rows, "key": keys, "value": keys, "selection_query": rows, "selection_key": keys}
        given = {name: (getattr(self, name), padding) for name, padding in hidden.items()}
        return self._replace(**{n: x.masked_fill(padding, 0.0) for n, (x, padding) in given.items() if x is not None})


class Tokens(NamedTuple):
    """New tokens of a layer: whole sequences, or the next tokens for its cache."""

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
