"""Who leaves when, for many queries at once: the order in which token-by-token decoding would evict.

With it an ordinary full forward, in which every row sees what it would have seen in decoding, is one more input of the
operator (`visible_until`). The order is sequential by nature; it is computed by the compiled library, and where that is
not built, or for a policy that it does not know, row by row in Python.
"""

from __future__ import annotations

import torch
from torch import Tensor

from selattn import native
from selattn.cache import compiled
from selattn.cache.order import Order, Strip
from selattn.cache.policies import Kept, Policy, victim


def evict(
    policy: Policy, budget: int, strip: Strip, order: Order, history: bool = False
) -> tuple[Order, Tensor | None]:
    """The order after the strip; with `history` also the scores after each of its rows, [n, B, P, M]."""
    if policy.native is not None and native.library() is not None:
        return compiled.order_of_strip(policy, budget, strip, order, history)
    return _row_by_row(policy, budget, strip, order, history)


def _row_by_row(policy: Policy, budget: int, strip: Strip, order: Order, history: bool) -> tuple[Order, Tensor | None]:
    until, state, score = (x.clone() for x in order)
    _, orders, entries = until.shape
    heads, groups = strip.heads
    masks = 0 if strip.selected is None else strip.selected.shape[1]
    first, scores = entries - strip.rows, []
    index = torch.arange(entries, device=until.device)
    begins = torch.where(strip.positions == 0, index, -1).cummax(-1).values  # where a row's document began
    for r in range(strip.rows):
        i = first + r
        real = strip.positions[:, None, i] >= 0
        kept = (strip.positions[:, None] >= 0) & (until > i) & (index < i)
        kept = kept & (index >= begins[:, None, i, None])
        position = strip.positions[:, None].masked_fill(~kept, -1)
        reads = masks and policy.needs_selection
        forgotten = state.amin(1, keepdim=True) if reads else torch.zeros_like(score[:, :1])
        leaves = victim(policy, Kept(position, score, forgotten, budget))
        full = real & (kept.sum(-1) >= budget)
        gone = full[..., None] & (index == leaves[..., None])
        until = until.masked_fill(gone, i)
        kept = (kept & ~gone) | (index == i)
        own = kept[:, strip.selecting] if orders > 1 and masks else kept  # what the selecting heads keep
        S = None if strip.selected is None else strip.selected[:, :, r].masked_fill(~own, 0.0)
        if policy.needs_weights and strip.logits is not None:
            logits = strip.logits[:, :, r]
            if S is not None:
                F = state if strip.shift else state + S
                logits = logits - F.repeat_interleave(heads // masks, 1)
            seen = kept if orders == 1 else kept.repeat_interleave(heads // groups, 1)
            weights = logits.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
            mean = weights.unflatten(1, (orders, -1)).mean(2)
            score = torch.where(real[..., None], policy.update(score, mean), score)
        if S is not None:
            state = torch.where(real[..., None], state + S, state)
        scores.append(score)
    return Order(until, state, score), torch.stack(scores) if history else None
