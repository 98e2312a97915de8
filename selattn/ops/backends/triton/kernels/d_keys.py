"""The gradients of keys and values, and those of queries: flash attention's two backward passes, F made in the tile.

Two passes, because the gradient of a key is a sum over rows and that of a query a sum over keys: one program can own
only one of them, and who does not own what it adds to needs atomics. Per pair and head 2 * D * 4 operations over keys
and 2 * D * 3 over queries, as without F; and one product of the selecting head for every HEADS heads.

Columns die at different rows. Over queries, a block of rows has its list of living keys. Over keys, the keys are taken
in the order in which they die, so that those of a program live about as long as each other, and it can stop after the
last.
"""

import triton
import triton.language as tl

from selattn.ops.backends.triton.kernels.common import (
    blocks_of,
    columns_at,
    columns_of,
    dense_rows,
    f_of_rows,
    keys_at,
    last_rows,
    last_selecting,
    load_rows,
    logits,
    row_numbers,
    sees,
    selected,
    selecting_keys,
    selecting_rows,
    slope,
    source_rows,
    store_rows,
)


@triton.jit
def f_by_keys(c, b, s, t, ks, last, r, cols, present, BM: tl.constexpr, HOW: tl.constexpr):
    """F [BN, BM] of block t, keys by queries. ks: the selecting keys; last: see `last_selecting`."""
    T = tl.cdiv(c.N, BM)
    up = source_rows(r, HOW)
    source = row_numbers(c, b, up, HOW)
    qs = selecting_rows(c, b, s, up, HOW, HOW.Ds, HOW.Ds_padded)
    products = tl.dot(ks, tl.trans(qs), input_precision=HOW.precision)
    S = selected(c, b, s, products, source[None, :], up[None, :], cols[:, None], last[:, None], HOW)
    begin = tl.load(c.block_f + ((b.to(tl.int64) * c.S + s) * T + t) * c.M + cols, mask=present, other=0.0)
    return begin[:, None] + tl.cumsum(S, 1)


@triton.jit
def d_keys(
    c,
    d_out,
    lse,
    delta,
    dead,
    order,
    dk_selecting,
    dk,
    dv,
    HOW: tl.constexpr,
    ORDERS: tl.constexpr,
    HEADS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """dk [B, G, M, D] and dv [B, G, M, Dv]; dk_selecting [B, S, M, Ds] is added where it belongs.

    Tiles are keys by rows: so their products with queries and gradients need no transposing, and the running sum that
    makes F stays within a few lanes.
    """
    n, g, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    shared = c.H // c.G
    s = g * 0
    if HOW.select:
        s = g * shared // (c.H // c.S)
    cols, present, dies = keys_at(c, order, dead, b, s, n, BM, BN, HOW, ORDERS)
    k = load_rows(c.key, b, g, cols, present, HOW.D, HOW.D_padded)
    v = load_rows(c.value, b, g, cols, present, HOW.Dv, HOW.Dv_padded)
    D: tl.constexpr = HOW.D_padded
    DV: tl.constexpr = HOW.Dv_padded
    d_key = tl.zeros((BN, D), tl.float32)
    d_value = tl.zeros((BN, DV), tl.float32)
    F = tl.zeros((BN, BM), tl.float32)
    for chunk in range(shared // HEADS):
        first = g * shared + chunk * HEADS
        last = last_rows(c, b, first, cols, present, HOW)
        if HOW.select:
            if ORDERS < HOW.lists:  # the heads of a group may follow different masks
                s = first // (c.H // c.S)
                _, _, dies = keys_at(c, order, dead, b, s, n, BM, BN, HOW, ORDERS)
            ks = selecting_keys(c, b, s, cols, present, HOW, HOW.Ds, HOW.Ds_padded)
            may = last_selecting(c, b, s, cols, present, HOW)
        last = tl.minimum(last, dies)
        begin, end = blocks_of(c, cols, present, last, BM)
        for t in range(begin, end):
            r = t * BM + tl.arange(0, BM)
            inside = r < c.N
            i = row_numbers(c, b, r, HOW)
            if HOW.select:
                F = f_by_keys(c, b, s, t, ks, may, r, cols, present, BM, HOW)
            for x in tl.static_range(HEADS):
                h = first + x
                q = load_rows(c.query, b, h, r, inside, HOW.D, HOW.D_padded)
                do = load_rows(d_out, b, h, r, inside, HOW.Dv, HOW.Dv_padded)
                row = (b.to(tl.int64) * c.H + h) * c.N + r
                mean = tl.load(delta + row, mask=inside, other=0.0)
                norm = tl.load(lse + row, mask=inside, other=float("inf"))
                seen, bias = sees(c, b, h, i[None, :], r[None, :], cols[:, None], last[:, None], HOW)
                capped = logits(c, tl.dot(k, tl.trans(q), input_precision=HOW.precision), HOW)
                y = capped
                if HOW.bias:
                    y += bias
                if HOW.select:
                    y -= F
                weights = tl.where(seen, tl.exp2(y - norm[None, :]), 0.0)
                d_value = tl.dot(weights.to(do.dtype), do, d_value, input_precision=HOW.precision)
                products = tl.dot(v, tl.trans(do), input_precision=HOW.precision)
                d = tl.where(seen, weights * (products - mean[None, :]), 0.0)
                if HOW.softcap:
                    d *= slope(capped, c.cap)
                d_key = tl.dot(d.to(q.dtype), q, d_key, input_precision=HOW.precision)
    if HOW.select and not HOW.separate:
        for mask in range(c.S):
            if tl.load(c.heads + mask) // shared == g:
                each = b.to(tl.int64) * c.S + mask
                d_key += dense_rows(dk_selecting, c.M, each, cols, present, HOW.Ds, HOW.Ds_padded)
    each = b.to(tl.int64) * c.G + g
    store_rows(dk, c.M, each, cols, present, d_key * c.natural_scale, HOW.D, HOW.D_padded)
    store_rows(dv, c.M, each, cols, present, d_value, HOW.Dv, HOW.Dv_padded)


@triton.jit
def d_queries(
    c,
    d_out,
    lse,
    delta,
    dq_selecting,
    dq,
    d_bias,
    HOW: tl.constexpr,
    BIAS: tl.constexpr,
    HEADS: tl.constexpr,
    SAME: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """dq [B, H, N, D]; dq_selecting [B, S, N, Ds] is added where it belongs; to d_bias [B, H, N, M] dA, if BIAS."""
    t = tl.cdiv(c.N, BM) - 1 - tl.program_id(0)  # the longest first
    first, b = tl.program_id(1) * HEADS, tl.program_id(2)
    shared = c.H // c.G
    s = first * 0
    if HOW.select:
        s = first // (c.H // c.S)
    r = t * BM + tl.arange(0, BM)
    inside = r < c.N
    i = row_numbers(c, b, r, HOW)
    F = tl.zeros((BM, BN), tl.float32)
    if HOW.select:
        up = source_rows(r, HOW)
        source = row_numbers(c, b, up, HOW)
        qs = selecting_rows(c, b, s, up, HOW, HOW.Ds, HOW.Ds_padded)
    D: tl.constexpr = HOW.D_padded
    queries, upstream, means, norms, totals = (), (), (), (), ()
    for x in tl.static_range(HEADS):
        row = (b.to(tl.int64) * c.H + first + x) * c.N + r
        queries = queries + (load_rows(c.query, b, first + x, r, inside, HOW.D, HOW.D_padded),)
        upstream = upstream + (load_rows(d_out, b, first + x, r, inside, HOW.Dv, HOW.Dv_padded),)
        means = means + (tl.load(delta + row, mask=inside, other=0.0),)
        norms = norms + (tl.load(lse + row, mask=inside, other=float("inf")),)
        totals = totals + (tl.zeros((BM, D), tl.float32),)
    list_at, begin, count = columns_of(c, b, s, t, BM, HOW)
    for at in range(0, count, BN):
        cols, present = columns_at(c, list_at, begin, count, at, BN, HOW)
        if HOW.select:
            F = f_of_rows(c, b, s, t, qs, source, up, cols, present, BM, HOW)
        if SAME:
            k = load_rows(c.key, b, first // shared, cols, present, HOW.D, HOW.D_padded)
            v = load_rows(c.value, b, first // shared, cols, present, HOW.Dv, HOW.Dv_padded)
        new = ()
        for x in tl.static_range(HEADS):
            h = first + x
            if not SAME:
                k = load_rows(c.key, b, h // shared, cols, present, HOW.D, HOW.D_padded)
                v = load_rows(c.value, b, h // shared, cols, present, HOW.Dv, HOW.Dv_padded)
            last = last_rows(c, b, h, cols, present, HOW)
            seen, bias = sees(c, b, h, i[:, None], r[:, None], cols[None, :], last[None, :], HOW)
            capped = logits(c, tl.dot(queries[x], tl.trans(k), input_precision=HOW.precision), HOW)
            y = capped
            if HOW.bias:
                y += bias
            if HOW.select:
                y -= F
            weights = tl.exp2(y - norms[x][:, None])
            products = tl.dot(upstream[x], tl.trans(v), input_precision=HOW.precision)
            d = tl.where(seen, weights * (products - means[x][:, None]), 0.0)
            if BIAS:
                to = ((b.to(tl.int64) * c.H + h) * c.N + r)[:, None] * c.M + cols[None, :]
                tl.store(d_bias + to, tl.load(d_bias + to, mask=seen, other=0.0) + d, mask=seen)
            if HOW.softcap:
                d *= slope(capped, c.cap)
            new = new + (tl.dot(d.to(k.dtype), k, totals[x], input_precision=HOW.precision),)
        totals = new
    for x in tl.static_range(HEADS):
        total = totals[x]
        if HOW.select and not HOW.separate:
            for mask in range(c.S):
                if tl.load(c.heads + mask) == first + x:
                    each = b.to(tl.int64) * c.S + mask
                    total += dense_rows(dq_selecting, c.N, each, r, inside, HOW.Ds, HOW.Ds_padded)
        each = b.to(tl.int64) * c.H + first + x
        store_rows(dq, c.N, each, r, inside, total * c.natural_scale, HOW.D, HOW.D_padded)
