"""What F is. One definition, in two forms: for a whole sequence, and as the update by one query.

    S = Constrain(logits of the selecting head)          (`constrain`)
    F = Accumulate(S),  F[i, j] = sum over k < i of S[k, j]  (`accumulate`; `step` for one query)
    M_i = i - sum over k <= i of min(F[i, k], tau) / tau     (`memory`)

Shapes: B batch, S selection masks (1 in the paper), N queries, M keys. S and F are [B, S, N, M]; F before or after
some queries is [B, S, M].
Everything here is computed in fp32 or better: a bf16 running sum over 512 rows was measured to be off by 1.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from selattn.errors import SelattnError


@dataclass(frozen=True)
class Selection:
    """How S is made from logits: the paper's sections 3.1 to 3.3, every choice a switch.

    Args:
        head: the query head whose logits are S (the paper: 0). A tuple gives several selection masks: the heads are cut
            into that many equal, contiguous groups, and group g follows the selecting head `head[g]`.
        relu: constraint 1, selection only ever reduces attention. Off: S keeps its sign.
        protect_first: constraint 2, the first real token of a sequence (<BOS>) is never masked.
        protect_self: constraint 3, a token does not mask itself.
        shift: a token's selection counts for later queries only; off, it also counts for its own row.
    """

    head: int | tuple[int, ...] = 0
    relu: bool = True
    protect_first: bool = True
    protect_self: bool = True
    shift: bool = True

    def __post_init__(self) -> None:
        for head in self.heads:
            if isinstance(head, bool) or not isinstance(head, int) or head < 0:
                raise SelattnError(f"Selection.head must be a head index from 0, or a tuple of them, not {self.head!r}")
        if not self.heads:
            raise SelattnError("Selection.head is an empty tuple: name at least one selecting head")
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise SelattnError(f"Selection.{name} must be True or False, not {getattr(self, name)!r}")

    @property
    def heads(self) -> tuple[int, ...]:
        """The selecting heads, one for each selection mask."""
        return self.head if isinstance(self.head, tuple) else (self.head,)

    @property
    def switches(self) -> dict[str, bool]:
        """All but the head, by name."""
        return {name: getattr(self, name) for name in _SWITCHES}

    def allowed(self, seen: Tensor, own: Tensor, first: Tensor) -> Tensor:
        """Bool: what may be selected of what is seen, where `own` is the query's key and `first` the sequence's."""
        if self.protect_self:
            seen = seen & ~own
        if self.protect_first:
            seen = seen & ~first
        return seen


_SWITCHES = tuple(field.name for field in fields(Selection) if field.name != "head")


def constrain(logits: Tensor, allowed: Tensor, relu: bool, strength: Tensor | None) -> Tensor:
    """S = strength * relu(logits), and 0 where it is not `allowed`: invisible, or exempt by constraint 2 or 3."""
    S = logits.relu() if relu else logits
    if strength is not None:
        S = S * strength
    return S.masked_fill(~allowed, 0.0)


def constrain_backward(dS: Tensor, logits: Tensor, allowed: Tensor, relu: bool, strength: Tensor | None) -> Tensor:
    """The gradient of `constrain` with respect to the logits."""
    passes = allowed & (logits > 0) if relu else allowed
    if strength is not None:
        dS = dS * strength
    return dS.masked_fill(~passes, 0.0)


def accumulate(S: Tensor, initial_f: Tensor | None, shift: bool) -> tuple[Tensor, Tensor]:
    """F for all rows of S [..., N, M], and F [..., M] with which a next query would begin.

    initial_f[j] = what all queries before have selected of key j. The first row of F is that itself (shift), or that
    plus the first row of S (no shift).
    """
    total = S.cumsum(-2)
    if initial_f is not None:
        total = total + initial_f.unsqueeze(-2)
    if not shift:
        return total, total[..., -1, :]
    before = torch.zeros_like(S[..., :1, :]) if initial_f is None else initial_f.unsqueeze(-2).expand_as(S[..., :1, :])
    # Shifting the rows, rather than subtracting S from the total, keeps F exactly monotone and exactly 0 where nothing
    # was selected yet.
    return torch.cat([before, total[..., :-1, :]], -2), total[..., -1, :]


def accumulate_backward(dF: Tensor, d_final_f: Tensor | None, shift: bool) -> tuple[Tensor, Tensor]:
    """Gradients of `accumulate` with respect to S and to the F that it began with.

    dS[k, j] = d_final_f[j] + sum over i > k (no shift: i >= k) of dF[i, j].
    """
    suffix = dF.flip(-2).cumsum(-2).flip(-2)
    if d_final_f is not None:
        suffix = suffix + d_final_f.unsqueeze(-2)
    if not shift:
        return suffix, suffix[..., 0, :]
    after = torch.zeros_like(suffix[..., :1, :]) if d_final_f is None else d_final_f.unsqueeze(-2)
    return torch.cat([suffix[..., 1:, :], after], -2), suffix[..., 0, :]


def step(S: Tensor, f: Tensor, shift: bool) -> tuple[Tensor, Tensor]:
    """`accumulate` for one query: its row of F, and F with which the next begins. S and f are [..., M]."""
    after = f + S
    return (f if shift else after), after


def memory(F: Tensor, visible: Tensor, tau: float) -> Tensor:
    """M_i = sum over the keys k that row i sees of 1 - min(F[i, k], tau) / tau.

    That is the paper's i - sum over k <= i of min(F[i, k], tau) / tau, where i counts the real tokens of the sequence
    up to this one; a key that a window or an eviction has taken away needs no memory and is not counted.
    """
    return (1.0 - F.clamp(max=tau) / tau).masked_fill(~visible, 0.0).sum(-1)


def memory_backward(dM: Tensor, F: Tensor, visible: Tensor, tau: float) -> Tensor:
    """The gradient of `memory` with respect to F: - dM_i / tau where key k is seen and F[i, k] <= tau."""
    return (dM / -tau).unsqueeze(-1).expand_as(F).masked_fill(~(visible & (F <= tau)), 0.0)
