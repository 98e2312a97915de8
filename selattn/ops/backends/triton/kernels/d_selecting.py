"""Backward through F: what all heads say of it, summed up, goes back into the selecting head.

With P the weights, dP = dO V^T and delta = rowsum(dO * O), for each head h
    dA^h = P^h (dP^h - delta^h)
    dF   = - sum over h of dA^h - (dM_i / tau where F <= tau)
    dS of a source = sum of dF over all later rows, and the rows of its own block from it on
    d logit of the selecting head = strength * dS where it may select and its logit is positive

The sum over heads is needed pair by pair, because S has a relu for each pair, so one program must see all heads of a
tile; but it cannot hold the gradients of their queries (BM x D each) at the same time. So P and dP are made here once
more: 4 * D operations per pair and head more than without F. The alternatives:

    column sums of dA for each head and block, from the pass over keys, and a scan
                      that gives dS at the ends of blocks, but inside a block each row needs the pairs themselves
    dF from the pass over queries, one head after the other, added up in memory
                      4 bytes read and written per pair and head, and launches that wait for each other
    atomics           the order of sums, and with it the result, would differ from run to run

dF is written once for all heads (4 bytes a pair and mask), for a strip of rows at a time, so that memory stays linear.
Then one program for BN keys goes over the strip from the last block to the first with the sum over later rows in
registers, makes d logit of it in place, and sums up dK; another, for a block of rows, sums up dQ. Every sum has one
order: the same call gives the same bits.

dS is a sum over rows and heads, and may leave the range of fp16. So its products are made in TF32, which has as many
digits as fp16 and the range of fp32; for one head of all, their time does not matter.
"""

import triton
import triton.language as tl

from selattn.ops.backends.triton.kernels.common import (
    LOG2E,
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
    may_select,
    reaches_logits,
    row_numbers,
    rows_of_f,
    sees,
    selecting_keys,
    selecting_logits,
    selecting_rows,
    selection_sees,
    slope,
    source_rows,
    store_rows,
)


@triton.jit
def row_products(x, y, delta, count, HOW: tl.constexpr, BM: tl.constexpr):
    """delta = rowsum(x * y), [B, H, N]: of the output and its gradient. `count` is the number of heads."""
    t, h, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    r = t * BM + tl.arange(0, BM)
    inside = r < count
    left = load_rows(x, b, h, r, inside, HOW.Dv, HOW.Dv_padded).to(tl.float32)
    right = load_rows(y, b, h, r, inside, HOW.Dv, HOW.Dv_padded).to(tl.float32)
    at = (b.to(tl.int64) * tl.num_programs(1) + h) * count + r
    tl.store(delta + at, tl.sum(left * right, 1), mask=inside)


@triton.jit
def d_forgetting(
    c, d_out, lse, delta, d_memory, df, first_block, strip, HOW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    """dF of the tiles of a strip, into df [B, S, strip, M]. d_memory [B, S, N]; HOW.memory: M has a gradient."""
    at, t = tl.program_id(0) * BN, first_block + tl.program_id(1)
    s, b = tl.program_id(2) % c.S, tl.program_id(2) // c.S
    list_at, begin, count = columns_of(c, b, s, t, BM, HOW)
    if at < count:
        r = t * BM + tl.arange(0, BM)
        inside = r < c.N
        i = row_numbers(c, b, r, HOW)
        up = source_rows(r, HOW)
        source = row_numbers(c, b, up, HOW)
        cols, present = columns_at(c, list_at, begin, count, at, BN, HOW)
        qs = selecting_rows(c, b, s, up, HOW, HOW.Ds, HOW.Ds_padded)
        F = f_of_rows(c, b, s, t, qs, source, up, cols, present, BM, HOW)
        total = tl.zeros((BM, BN), tl.float32)
        for x in range(c.H // c.S):
            h = s * (c.H // c.S) + x
            g = h // (c.H // c.G)
            q = load_rows(c.query, b, h, r, inside, HOW.D, HOW.D_padded)
            k = load_rows(c.key, b, g, cols, present, HOW.D, HOW.D_padded)
            v = load_rows(c.value, b, g, cols, present, HOW.Dv, HOW.Dv_padded)
            do = load_rows(d_out, b, h, r, inside, HOW.Dv, HOW.Dv_padded)
            row = (b.to(tl.int64) * c.H + h) * c.N + r
            mean = tl.load(delta + row, mask=inside, other=0.0)
            norm = tl.load(lse + row, mask=inside, other=float("inf"))
            last = last_rows(c, b, h, cols, present, HOW)
            seen, bias = sees(c, b, h, i[:, None], r[:, None], cols[None, :], last[None, :], HOW)
            y = logits(c, tl.dot(q, tl.trans(k), input_precision=HOW.precision), HOW)
            if HOW.bias:
                y += bias
            weights = tl.exp2(y - F - norm[:, None])
            products = tl.dot(do, tl.trans(v), input_precision=HOW.precision)
            total += tl.where(seen, weights * (products - mean[:, None]), 0.0)
        total = -total
        if HOW.memory:
            seen = selection_sees(c, b, s, i[:, None], r[:, None], cols, present, HOW)
            pull = tl.load(d_memory + (b.to(tl.int64) * c.S + s) * c.N + r, mask=inside, other=0.0)
            total -= tl.where(seen & (F <= c.tau), pull[:, None] * LOG2E / c.tau, 0.0)
        to = (b.to(tl.int64) * c.S + s) * strip + r - first_block * BM
        tl.store(df + to[:, None] * c.M + cols[None, :], total, mask=inside[:, None] & present[None, :])


@triton.jit
def d_selecting_keys(
    c,
    df,
    dead,
    order,
    later,
    dk,
    d_bias,
    first_block,
    end_block,
    strip,
    first_mask,
    HOW: tl.constexpr,
    ORDERS: tl.constexpr,
    WHOLE: tl.constexpr,
    BIAS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """dF of a strip becomes d logit of the selecting head; later [B, S, M] and dk [B, S, M, Ds], in fp32, move on.

    WHOLE: the final F has a gradient, so that what a source selects counts though nobody sees the key any more.
    """
    n, s, b = tl.program_id(0), first_mask + tl.program_id(1), tl.program_id(2)
    cols, present, dies = keys_at(c, order, dead, b, s, n, BM, BN, HOW, ORDERS)
    any_head = dies
    if HOW.last != 0:
        any_head = tl.minimum(dies, tl.load(c.last_any + b.to(tl.int64) * c.M + cols, mask=present, other=0))
    begin, end = blocks_of(c, cols, present, any_head, BM)
    if WHOLE:
        end = end_block
    begin = tl.maximum(begin, first_block)
    end = tl.minimum(end, end_block)
    if begin < end:
        each = b.to(tl.int64) * c.S + s
        last = last_selecting(c, b, s, cols, present, HOW)
        ks = selecting_keys(c, b, s, cols, present, HOW, HOW.Ds, HOW.Ds_padded)
        carry = tl.load(later + each * c.M + cols, mask=present, other=0.0)
        total = dense_rows(dk, c.M, each, cols, present, HOW.Ds, HOW.Ds_padded)
        for back in range(end - begin):
            t = end - 1 - back
            r = t * BM + tl.arange(0, BM)
            i = row_numbers(c, b, r, HOW)
            tile = (each * strip + r - first_block * BM)[None, :] * c.M + cols[:, None]
            # A key that only some heads see may be left alone by all: what nobody wrote is not read.
            seen = (cols[:, None] <= i[None, :]) & (i[None, :] < any_head[:, None])
            found = tl.load(df + tile, mask=seen, other=0.0)
            sums = tl.cumsum(found, 1, reverse=True) + carry[:, None]
            carry += tl.sum(found, 1)
            above = source_rows(r, HOW)
            source = row_numbers(c, b, above, HOW)
            qs = selecting_rows(c, b, s, above, HOW, HOW.Ds, HOW.Ds_padded)
            x = selecting_logits(c, tl.dot(ks, tl.trans(qs), input_precision=HOW.precision), HOW)
            up = above[None, :]
            passes, bias = may_select(c, b, s, source[None, :], up, cols[:, None], last[:, None], HOW)
            y = x
            if HOW.bias:
                y = x + bias
            passes = reaches_logits(passes, y, HOW)
            d = tl.where(passes, sums, 0.0)
            if HOW.strength:
                d *= tl.load(c.strength)
            if BIAS:
                at = ((b.to(tl.int64) * c.H + tl.load(c.heads + s)) * c.N + up) * c.M + cols[:, None]
                tl.store(d_bias + at, tl.load(d_bias + at, mask=passes, other=0.0) + d, mask=passes)
            if HOW.softcap and not HOW.separate:
                d *= slope(x, c.cap)
            # Rows up to one past the last: with a final F, the last source belongs to no row.
            tl.store(df + tile, d, mask=present[:, None] & (r < rows_of_f(c, HOW))[None, :])
            total = tl.dot(d, qs.to(tl.float32), total, input_precision=HOW.sums)
        tl.store(later + each * c.M + cols, carry, mask=present)
        store_rows(dk, c.M, each, cols, present, total, HOW.Ds, HOW.Ds_padded)


@triton.jit
def d_selecting_queries(
    c, df, dq, first_block, strip, HOW: tl.constexpr, WHOLE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    """dq [B, S, N, Ds] fp32 of the selecting head, for the sources of a block of the strip."""
    t = first_block + tl.program_id(0)
    s, b = tl.program_id(1), tl.program_id(2)
    each = b.to(tl.int64) * c.S + s
    r = t * BM + tl.arange(0, BM)
    SIZE: tl.constexpr = HOW.Ds_padded
    total = tl.zeros((BM, SIZE), tl.float32)
    if WHOLE:
        list_at, begin, count = each * 0, s * 0, tl.minimum(c.M, c.M - c.N + (t + 1) * BM)
    else:
        list_at, begin, count = columns_of(c, b, s, t, BM, HOW)
    row = each * strip + r - first_block * BM
    for at in range(0, count, BN):
        if WHOLE:
            present = at + tl.arange(0, BN) < count
            cols = tl.where(present, at + tl.arange(0, BN), 0)
        else:
            cols, present = columns_at(c, list_at, begin, count, at, BN, HOW)
        ks = selecting_keys(c, b, s, cols, present, HOW, HOW.Ds, HOW.Ds_padded)
        if HOW.last != 0 and not (HOW.gather or WHOLE):
            # Keys among the others that no row of the block sees: nobody wrote anything for them.
            last = tl.load(c.last_any + b.to(tl.int64) * c.M + cols, mask=present, other=0)
            present = present & (last > c.M - c.N + t * BM)
        mask = (r < rows_of_f(c, HOW))[:, None] & present[None, :]
        d = tl.load(df + row[:, None] * c.M + cols[None, :], mask=mask, other=0.0)
        total = tl.dot(d, ks.to(tl.float32), total, input_precision=HOW.sums)
    up = source_rows(r, HOW)
    store_rows(dq, c.N, each, up, (up >= 0) & (up < c.N), total, HOW.Ds, HOW.Ds_padded)
