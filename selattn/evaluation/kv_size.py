"""How many tokens each layer's cache must hold, and how many a query reads.

    held   the most tokens, at any time within N, that a later query can still read
    read   the most tokens that one query reads

With a budget K both are at most K. A window of W needs W of both. A sparse pattern differs: the strided one of Child et
al. reads few tokens, but every one of them is read again some stride later, so all have to be held. KV size means what
is held: that is what takes memory. Records give both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from selattn.cache import Budgets, Policy, import_policy, make_policy
from selattn.models.kinds import AttentionKind
from selattn.models.seam import Description
from selattn.ops.rules import pattern_visible


@dataclass(frozen=True)
class KVSize:
    """Tokens by layer.

    Attributes:
        context: N.
        held: what each layer must hold.
        read: what a query of each layer reads.
    """

    context: int
    held: tuple[int, ...]
    read: tuple[int, ...]

    @property
    def mean(self) -> float:
        """Tokens held, a mean over the layers."""
        return sum(self.held) / len(self.held)

    @property
    def factor(self) -> float:
        """layers * N / tokens held: with budgets the paper's memory factor."""
        return self.context / self.mean


def kv_size(
    model: Description, context: int, budgets: Budgets | None = None, policy: str | Policy | None = None
) -> KVSize:
    """Of a model at a context of N tokens; its own budgets and policy unless others are given."""
    budgets = budgets or model.budgets
    limits: list[int] = [context] * model.layers
    chosen = make_policy(model.policy) if policy is None else import_policy(policy)
    if budgets is not None and chosen.evicts:
        limits = [min(k, context) for k in budgets.for_layers(model.layers)]
    kinds = {kind: _unlimited(kind, context, model.heads) for kind in model.kinds}
    sizes = [tuple(min(size, limit) for size in kinds[kind]) for kind, limit in zip(model.kinds, limits, strict=True)]
    return KVSize(context, tuple(held for held, _ in sizes), tuple(read for _, read in sizes))


def _unlimited(kind: AttentionKind, context: int, heads: int) -> tuple[int, int]:
    """Held and read, counted in the whole matrix of who sees whom."""
    if kind.pattern is None:
        size = min(kind.window or context, context)
        return size, size
    place = torch.arange(context)
    seen = pattern_visible(kind.pattern, place[None, :, None], place[None, None, :], heads).any(1)[0]
    seen = seen & (place[None, :] <= place[:, None])  # [N, N]
    last = torch.where(seen, place[:, None], -1).amax(0)  # the last query that reads each token
    held = ((place[None, :] <= place[:, None]) & (last[None, :] >= place[:, None])).sum(-1)
    return int(held.max()), int(seen.sum(-1).max())
