"""Who leaves when, for many queries at once: the order in which token-by-token decoding would evict.

With it an ordinary full forward, in which every row sees what it would have seen in decoding, is one more input of the
operator (`visible_until`). The order is sequential by nature; it is computed by the compiled library, and where that is
not built, or for a policy that it does not know, row by row in Python.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from selattn import native
from selattn.cache.policies import Kept, Policy, victim

NEVER = 1 << 40  # a row that no sequence reaches


class Order(NamedTuple):
    """What is known of M entries (tokens in the order of their positions) before, and after, a strip of rows."""

    until: Tensor  # [B, P, M] int64, the row from which an entry is gone; NEVER while it is kept
    state: Tensor  # [B, S, M] F
    score: Tensor  # [B, P, M]


class Strip(NamedTuple):
    """n queries, which are the last n of the M entries."""

    positions: Tensor  # [B, M] int64, -1 for padding and empty places
    logits: Tensor | None  # [B, H, n, M], -inf where invisible; only for policies that need weights
    selected: Tensor | None  # [B, S, n, M] the constrained S as if nothing had left; None in a standard model
    heads: tuple[int, int]  # H, G
    selecting: list[int]  # [S] the key-value head of each selecting head
    rows: int  # n
    shift: bool


def evict(
    policy: Policy, budget: int, strip: Strip, order: Order, history: bool = False
) -> tuple[Order, Tensor | None]:
    """The order after the strip; with `history` also the scores after each of its rows, [n, B, P, M]."""
    if policy.native is not None and native.library() is not None:
        return _compiled(policy, budget, strip, order, history)
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


def _compiled(policy: Policy, budget: int, strip: Strip, order: Order, history: bool) -> tuple[Order, Tensor | None]:
    library = native.library()
    assert library is not None
    device, dtype = order.score.device, order.score.dtype
    until = order.until.cpu().clone(memory_format=torch.contiguous_format)  # written to, like state and score
    state, score = (x.detach().cpu().contiguous().clone() for x in (order.state, order.score))
    logits, selected = (None if x is None else x.detach().cpu().contiguous() for x in (strip.logits, strip.selected))
    positions = strip.positions.cpu().contiguous()
    selecting = torch.tensor(strip.selecting if order.until.shape[1] > 1 else [0] * len(strip.selecting))
    batch, orders, entries = until.shape
    masks = 0 if selected is None else selected.shape[1]
    scores = torch.empty(strip.rows, *score.shape, dtype=dtype) if history else None
    run = library.selattn_evict_f32 if dtype == torch.float32 else library.selattn_evict_f64
    sizes = (batch, *strip.heads, orders, masks, strip.rows, entries, budget)
    tensors = (logits, selected, selecting, positions, until, state, score, scores)
    failed = run(
        policy.native,
        *(ctypes.c_long(size) for size in sizes),
        strip.shift,
        *(ctypes.c_void_p(None if x is None else x.data_ptr()) for x in tensors),
    )
    if failed:
        raise MemoryError("the eviction order needs more memory than there is")
    moved = Order(until.to(device), state.to(device), score.to(device))
    return moved, None if scores is None else scores.to(device)
