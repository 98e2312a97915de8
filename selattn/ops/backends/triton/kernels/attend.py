"""Attention itself: flash attention over the keys of a block of rows, with F made anew in each tile.

A program has one block of rows and HEADS heads that follow the same mask. F of a tile costs one product and one running
sum, and serves all of them: per pair and head 2 * D * (2 + 1 / HEADS) operations where flash attention has 2 * D * 2.
To read F instead would take 4 bytes a pair and head (see select.py); to keep it for all heads, more registers than
there are, since each head has an output of BM x Dv to sum up.
"""

import triton
import triton.language as tl

from selattn.ops.backends.triton.kernels.common import (
    columns_at,
    columns_of,
    f_of_rows,
    last_rows,
    load_rows,
    logits,
    row_numbers,
    sees,
    selecting_rows,
    selection_sees,
    source_rows,
    store_rows,
)


@triton.jit
def add_tile(c, b, h, q, k, v, F, i, r, cols, last, top, total, output, HOW: tl.constexpr):
    """One head over one tile: the softmax's maximum and sum so far, and the sum of values, moved on."""
    seen, bias = sees(c, b, h, i[:, None], r[:, None], cols[None, :], last[None, :], HOW)
    x = logits(c, tl.dot(q, tl.trans(k), input_precision=HOW.precision), HOW)
    if HOW.bias:
        x += bias
    if HOW.select:
        x -= F
    x = tl.where(seen, x, float("-inf"))
    most = tl.maximum(top, tl.max(x, 1))
    safe = tl.where(most == float("-inf"), 0.0, most)  # a row that has seen nothing yet
    factor = tl.exp2(top - safe)
    weights = tl.exp2(x - safe[:, None])
    total = total * factor + tl.sum(weights, 1)
    output = tl.dot(weights.to(v.dtype), v, output * factor[:, None], input_precision=HOW.precision)
    return most, total, output


@triton.jit
def memory_of(c, b, s, F, i, r, cols, present, HOW: tl.constexpr):
    """What a tile adds to M_i: 1 - min(F, tau) / tau for each key that the selecting head sees."""
    seen = selection_sees(c, b, s, i[:, None], r[:, None], cols, present, HOW)
    return tl.sum(tl.where(seen, 1.0 - tl.where(F > c.tau, c.tau, F) / c.tau, 0.0), 1)


@triton.jit
def attend(
    c, out, lse, memory, HOW: tl.constexpr, HEADS: tl.constexpr, SAME: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    """The output [B, H, N, Dv], its log-sum-exp in base 2 [B, H, N], and M [B, S, N]. SAME: the heads share keys."""
    t = tl.cdiv(c.N, BM) - 1 - tl.program_id(0)  # the longest first
    first, b = tl.program_id(1) * HEADS, tl.program_id(2)
    shared = c.H // c.G
    s = tl.program_id(1) * 0
    if HOW.select:
        s = first // (c.H // c.S)
    r = t * BM + tl.arange(0, BM)
    i = row_numbers(c, b, r, HOW)
    F = tl.zeros((BM, BN), tl.float32)
    if HOW.select:
        up = source_rows(r, HOW)
        source = row_numbers(c, b, up, HOW)
        qs = selecting_rows(c, b, s, up, HOW, HOW.Ds, HOW.Ds_padded)
    DV: tl.constexpr = HOW.Dv_padded
    queries, tops, totals, outputs = (), (), (), ()
    for x in tl.static_range(HEADS):
        queries = queries + (load_rows(c.query, b, first + x, r, r < c.N, HOW.D, HOW.D_padded),)
        tops = tops + (tl.full((BM,), float("-inf"), tl.float32),)
        totals = totals + (tl.zeros((BM,), tl.float32),)
        outputs = outputs + (tl.zeros((BM, DV), tl.float32),)
    leads = first == s * (c.H // c.S)
    kept = tl.zeros((BM,), tl.float32)
    list_at, begin, count = columns_of(c, b, s, t, BM, HOW)
    for at in range(0, count, BN):
        cols, present = columns_at(c, list_at, begin, count, at, BN, HOW)
        if HOW.select:
            F = f_of_rows(c, b, s, t, qs, source, up, cols, present, BM, HOW)
            if HOW.memory:
                if leads:
                    kept += memory_of(c, b, s, F, i, r, cols, present, HOW)
        if SAME:
            k = load_rows(c.key, b, first // shared, cols, present, HOW.D, HOW.D_padded)
            v = load_rows(c.value, b, first // shared, cols, present, HOW.Dv, HOW.Dv_padded)
        new_tops, new_totals, new_outputs = (), (), ()
        for x in tl.static_range(HEADS):
            h = first + x
            if not SAME:
                k = load_rows(c.key, b, h // shared, cols, present, HOW.D, HOW.D_padded)
                v = load_rows(c.value, b, h // shared, cols, present, HOW.Dv, HOW.Dv_padded)
            last = last_rows(c, b, h, cols, present, HOW)
            top, total, output = add_tile(
                c, b, h, queries[x], k, v, F, i, r, cols, last, tops[x], totals[x], outputs[x], HOW
            )
            new_tops = new_tops + (top,)
            new_totals = new_totals + (total,)
            new_outputs = new_outputs + (output,)
        tops, totals, outputs = new_tops, new_totals, new_outputs
    for x in tl.static_range(HEADS):
        total = totals[x]
        nothing = total == 0.0
        share = 1.0 / tl.where(nothing, 1.0, total)
        each = b.to(tl.int64) * c.H + first + x
        store_rows(out, c.N, each, r, r < c.N, outputs[x] * share[:, None], HOW.Dv, HOW.Dv_padded)
        found = tl.where(nothing, float("inf"), tops[x] + tl.log2(tl.where(nothing, 1.0, total)))
        tl.store(lse + each * c.N + r, found, mask=r < c.N)
    if HOW.memory:
        if leads:
            tl.store(memory + (b.to(tl.int64) * c.S + s) * c.N + r, kept, mask=r < c.N)
