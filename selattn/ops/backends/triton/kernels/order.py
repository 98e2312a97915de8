"""The eviction order of many queries: the selecting head's logits in strips of rows, then row by row who leaves.

Who leaves in a row depends on all rows before it, so that rows go one after the other; but S of a pair does not, so
that its products need not wait. First the products of a strip, in tiles, all at once: 2 * D operations and 4 bytes
written for a pair and mask, 1 / (2 * heads) of what attention does. Then one program for each row of the batch, which
holds the kept tokens in registers (their entries, positions and F), goes over the rows of the strip and reads of each
4 bytes a kept token. A program that made the products itself would read 2 * D bytes for each, with all other
multiprocessors idle.
"""

import triton
import triton.language as tl

from selattn.ops.backends.triton.kernels.common import (
    NEVER,
    capped,
    constrained,
    entries,
    load_rows,
    spare_first,
    spare_self,
)
from selattn.ops.backends.triton.kernels.step import SELECTIVE


@triton.jit
def strip_logits(c, to, first, HOW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """S [B, S, strip, M] of the rows from `first` on, as if they saw all keys and nobody were protected."""
    n, t = tl.program_id(0), tl.program_id(1)
    s, b = tl.program_id(2) % c.S, tl.program_id(2) // c.S
    r = first + t * BM + tl.arange(0, BM)
    cols = n * BN + tl.arange(0, BN)
    inside, present = (r < c.N) & (r < first + c.strip), cols < c.M
    if n * BN <= c.M - c.N + tl.max(tl.where(inside, r, -1), 0):  # later keys are of no use
        h = tl.load(c.heads + s)
        g = h
        if not HOW.separate:
            g = h // (c.H // c.G)
        q = load_rows(c.query, b, h, r, inside, HOW.D, HOW.D_padded)
        k = load_rows(c.key, b, g, cols, present, HOW.D, HOW.D_padded)
        x = tl.dot(q, tl.trans(k), input_precision=HOW.precision) * c.scale
        if HOW.softcap:
            x = capped(x, c.cap)
        if HOW.bias:
            bias = entries(c.bias, b, s, r[:, None], cols[None, :], inside[:, None] & present[None, :], 0.0)
            x = tl.where(bias == float("-inf"), 0.0, constrained(c, x + bias, HOW))
        else:
            x = constrained(c, x, HOW)
        row = ((b.to(tl.int64) * c.S + s) * c.strip + r - first)[:, None]
        tl.store(to + row * c.M + cols[None, :], x, mask=inside[:, None] & present[None, :])


@triton.jit
def evict(c, logits, kept, first, count, HOW: tl.constexpr, SLOTS: tl.constexpr, MASKS: tl.constexpr):
    """Rows first to first + count: `until` [B, M] and `f` [B, S, M] move on, and so does `kept` [B, SLOTS].

    kept: the entries that are kept, -1 for an empty slot. MASKS is S, or the next power of two.
    """
    b = tl.program_id(0)
    row, offset = b.to(tl.int64), c.M - c.N
    slots, masks = tl.arange(0, SLOTS), tl.arange(0, MASKS)
    entry = tl.load(kept + row * SLOTS + slots)
    position = tl.load(c.positions + row * c.M + entry, mask=entry >= 0, other=-1)
    each = (row * c.S + masks)[:, None]  # rows of `f`
    F = tl.zeros((MASKS, SLOTS), tl.float32)
    if HOW.select:
        mask = (masks < c.S)[:, None] & (entry >= 0)[None, :]
        F = tl.load(c.f + each * c.M + entry[None, :], mask=mask, other=0.0)
    for r in range(first, first + count):
        i = offset + r
        now = tl.load(c.positions + row * c.M + i)
        if HOW.select:
            # Another document of a packed row begins: nothing older is seen again.
            over = (masks < tl.where(now == 0, c.S, 0))[:, None] & (entry >= 0)[None, :]
            tl.store(c.f + each * c.M + entry[None, :], F, mask=over)
        entry = tl.where(now == 0, -1, entry)
        position = tl.where(entry >= 0, position, -1)
        held = entry >= 0
        # Who leaves: the highest rank, of equals not the first token of the sequence, then the oldest.
        rank = tl.zeros((SLOTS,), tl.float32)
        if HOW.policy == SELECTIVE:
            if HOW.select:
                rank = tl.min(tl.where((masks < c.S)[:, None], F, float("inf")), 0)
        else:
            rank = tl.where(position < c.sinks, float("-inf"), -position.to(tl.float32))
        rank = tl.where(held, rank, float("-inf"))
        worst = held & (rank == tl.max(rank, 0))
        age = tl.where(position == 0, NEVER - 1, position)
        oldest = tl.min(tl.where(worst, age, NEVER), 0)
        leaves = tl.min(tl.where(worst & (age == oldest), slots, SLOTS), 0)
        empty = tl.min(tl.where(held, SLOTS, slots), 0)
        real = now >= 0
        full = real & (tl.sum(held.to(tl.int32), 0) >= c.budget)
        slot = tl.where(full, leaves, tl.where(real, empty, SLOTS))  # SLOTS is none: padding is not kept
        new = slots == slot
        gone = new & held
        tl.store(c.until + row * c.M + entry, tl.zeros((SLOTS,), tl.int64) + i, mask=gone)
        if HOW.select:
            here = (masks < c.S)[:, None]
            tl.store(c.f + each * c.M + entry[None, :], F, mask=here & gone[None, :])
        entry = tl.where(new, i, entry)
        position = tl.where(new, now, position)
        if HOW.select:
            begins = tl.load(c.f + each * c.M + i, mask=here, other=0.0)
            F = tl.where(new[None, :], begins, F)
            allowed = entry >= tl.where(real, 0, c.M)  # padding selects nothing
            if HOW.window:
                allowed = allowed & (now - position < c.window)
            allowed = spare_first(spare_self(allowed, slots != slot, HOW), position != 0, HOW)
            at = (each * c.strip + r - first) * c.M + entry[None, :]
            F += tl.load(logits + at, mask=here & allowed[None, :], other=0.0)
    tl.store(kept + row * SLOTS + slots, entry)
    if HOW.select:
        mask = (masks < c.S)[:, None] & (entry >= 0)[None, :]
        tl.store(c.f + each * c.M + entry[None, :], F, mask=mask)
