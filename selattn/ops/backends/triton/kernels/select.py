"""Before attention: F at the first row of each block of queries, which columns are dead from there, and who is left.

F depends on the selecting head only, and column by column. So one program owns BN keys and goes over all blocks of rows
from top to bottom, with F of its keys in registers; what it needs of a block is the sum of S over its sources, one
product of the selecting head. Per pair of a query and a key that is 2 * D operations and 4 / BM bytes written, once for
all heads: 1 / (2 * heads) of what flash attention does. The other ways cost more:

    each head makes all of F itself      2 * D operations for each head and each earlier row: no
    column sums first, then a scan       the same product, but 4 / BM bytes more written and read again, and columns
                                         that are dead by then could not be left out, because F is known only later
    F of all pairs                       4 bytes written and read by each head per pair: at 256 operations a pair (D =
                                         64, forward) reading them takes longer than attention itself

A program whose keys are all dead, or seen by nobody any more, stops.
"""

import triton
import triton.language as tl

from selattn.ops.backends.triton.kernels.common import (
    LOG2E,
    NEVER,
    capped,
    last_rows,
    last_selecting,
    load_rows,
    row_numbers,
    rows_of_f,
    selected,
    selecting_keys,
    selecting_rows,
    source_rows,
)

AT_ONCE = tl.constexpr(8)  # blocks of rows


@triton.jit
def bounds(c, reach, own, HOW: tl.constexpr, BM: tl.constexpr):
    """Of the rows of a block: the longest query, and the least of what a row gives to its own key or to the first.

    reach, own: [B, H, T], see csrc/attention/bounds.h; the caller makes them hold for all later blocks, too.
    """
    T = tl.cdiv(c.N, BM)
    t, h, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    r = t * BM + tl.arange(0, BM)
    i = row_numbers(c, b, r, HOW)
    real = i >= 0
    g = h // (c.H // c.G)
    q = load_rows(c.query, b, h, r, r < c.N, HOW.D, HOW.D_padded).to(tl.float32)
    k = load_rows(c.key, b, g, i, real, HOW.D, HOW.D_padded).to(tl.float32)
    most = tl.sum(q * k, 1) * c.scale
    # A row that does not see its own key lets nothing die.
    most = tl.where(i < last_rows(c, b, h, i, real, HOW), most, float("-inf"))
    if HOW.leans_on_first:
        # The first token of the sequence is seen by all its rows, with F = 0 (unless an initial F says else).
        first = tl.zeros_like(i)
        if HOW.first:
            first = tl.load(c.first + b.to(tl.int64) * c.M + i, mask=real, other=-1)
        there = real & (first >= 0)
        if HOW.initial_f:
            masked = tl.load(
                c.initial_f + (b.to(tl.int64) * c.S + h // (c.H // c.S)) * c.M + first, mask=there, other=1.0
            )
            there = there & (masked <= 0)
        k = load_rows(c.key, b, g, first, there, HOW.D, HOW.D_padded).to(tl.float32)
        most = tl.where(there, tl.maximum(most, tl.sum(q * k, 1) * c.scale), most)
    if HOW.softcap:
        most = tl.where(most == float("-inf"), most, capped(most, c.cap))
    at = (b.to(tl.int64) * c.H + h) * T + t
    square = tl.sum(q * q, 1)
    square = tl.where(square < float("inf"), square, float("inf"))  # NaN is as good as infinite: nothing dies
    longest = tl.sqrt(tl.max(tl.where(real, square, 0.0), 0))
    tl.store(reach + at, tl.abs(c.scale) * longest)
    tl.store(own + at, tl.min(tl.where(real, most, float("inf")), 0))


@triton.jit
def dying(c, b, s, t, f, lengths, more, reach, own, HOW: tl.constexpr, BM: tl.constexpr, HEADS: tl.constexpr):
    """Which of the keys are dead from block t on, by the bound of csrc/attention/bounds.h.

    lengths, more [HEADS, BN]: |k_j| and what its value adds to the bound, for each head that follows mask s.
    """
    T = tl.cdiv(c.N, BM)
    heads = tl.arange(0, HEADS)
    exists = heads < c.H // c.S
    at = (b.to(tl.int64) * c.H + s * (c.H // c.S) + heads) * T + t
    longest = tl.load(reach + at, mask=exists, other=0.0)
    least = tl.load(own + at, mask=exists, other=float("inf"))
    logit = longest[:, None] * lengths
    if HOW.softcap:
        logit = tl.where(logit > c.cap, c.cap, logit)
    over = logit - least[:, None] + more
    over = tl.where((longest < float("inf"))[:, None] & (over == over), over, float("inf"))
    most = tl.max(over, 0)
    slack = 1e-5 * (tl.abs(most) + f)  # rounding of the bound itself
    return (f >= c.least) & (most < float("inf")) & (f >= most + c.least + slack)


@triton.jit
def select(
    c,
    reach,
    own,
    key_lengths,
    value_sizes,
    dead,
    final_f,
    HOW: tl.constexpr,
    HEADS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """F at the first row of each block, [B, S, T, M]; the block from which a column is dead, [B, S, M]; the final F."""
    T = tl.cdiv(c.N, BM)
    offset = c.M - c.N
    n, s, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    cols = n * BN + tl.arange(0, BN)
    present = cols < c.M
    each = b.to(tl.int64) * c.S + s
    ks = selecting_keys(c, b, s, cols, present, HOW, HOW.Ds, HOW.Ds_padded)
    last = last_selecting(c, b, s, cols, present, HOW)
    f = tl.zeros((BN,), tl.float32)
    if HOW.initial_f:
        f = tl.load(c.initial_f + each * c.M + cols, mask=present, other=0.0) * LOG2E
    dies = tl.full((BN,), NEVER, tl.int32)
    lengths = tl.zeros((HEADS, BN), tl.float32)
    more = tl.zeros((HEADS, BN), tl.float32)
    if HOW.dies:
        heads = tl.arange(0, HEADS)
        group = (s * (c.H // c.S) + heads) // (c.H // c.G)
        mask = (heads < c.H // c.S)[:, None] & present[None, :]
        at = (b.to(tl.int64) * c.G + group)[:, None] * c.M + cols[None, :]
        lengths = tl.load(key_lengths + at, mask=mask, other=0.0)
        more = tl.load(value_sizes + at, mask=mask, other=0.0)
    # Blocks with a row, or a source, that sees one of the keys. The final F is what all sources select.
    t = tl.maximum(n * BN - offset, 0) // BM
    if HOW.final_f:
        end = tl.cdiv(rows_of_f(c, HOW), BM)
    elif HOW.last == 0:
        end = T
    else:
        until = tl.max(tl.load(c.last_any + b.to(tl.int64) * c.M + cols, mask=present, other=0), 0)
        end = tl.minimum(T, tl.cdiv(tl.maximum(until - offset, 0), BM))
    while t < end:
        # Loads are only made ahead in a `for` loop. So a few blocks at a time, and after them a look at who is left.
        stop = tl.minimum(end, t + AT_ONCE)
        for u in range(t, stop):
            # With a final F, a block of sources may follow the last block of rows: it has no F.
            tl.store(c.block_f + (each * T + u) * c.M + cols, f, mask=cols < tl.where(u < T, c.M, 0))
            r = source_rows(u * BM + tl.arange(0, BM), HOW)
            i = row_numbers(c, b, r, HOW)
            qs = selecting_rows(c, b, s, r, HOW, HOW.Ds, HOW.Ds_padded)
            # Keys by queries: so the sum over queries stays within a few lanes.
            products = tl.dot(ks, tl.trans(qs), input_precision=HOW.precision)
            S = selected(c, b, s, products, i[None, :], r[None, :], cols[:, None], last[:, None], HOW)
            if HOW.dies:
                # F of the block's first row, which has the first source in it.
                begins = f + tl.sum(tl.where((tl.arange(0, BM) == 0)[None, :], S, 0.0), 1)
                gone = dying(c, b, s, u, begins, lengths, more, reach, own, HOW, BM, HEADS) & (cols < offset + u * BM)
                dies = tl.where(gone & (dies == NEVER), u, dies)
            f += tl.sum(S, 1)
        t = stop
        if HOW.dies:
            alive = tl.max(tl.where(present & (dies == NEVER), 1, 0), 0)
            end = tl.where(alive > 0, end, t)
    if HOW.dies:
        tl.store(dead + each * c.M + cols, dies, mask=present)
    if HOW.final_f:
        tl.store(final_f + each * c.M + cols, f / LOG2E, mask=present)


@triton.jit
def list_columns(c, dead, HOW: tl.constexpr, BM: tl.constexpr, CHUNK: tl.constexpr):
    """For each block of rows the keys that live and that some of its rows may see, in order: columns and counts."""
    T = tl.cdiv(c.N, BM)
    t, s, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    each = b.to(tl.int64) * HOW.lists + s
    first_row = c.M - c.N + t * BM
    end = tl.minimum(c.M, first_row + BM)
    count = 0
    for begin in range(0, end, CHUNK):
        cols = begin + tl.arange(0, CHUNK)
        inside = cols < end
        lives = inside
        if HOW.last != 0:
            lives = lives & (tl.load(c.last_any + b.to(tl.int64) * c.M + cols, mask=inside, other=0) > first_row)
        if HOW.dies:
            lives = lives & (tl.load(dead + each * c.M + cols, mask=inside, other=0) > t)
        number = lives.to(tl.int32)
        at = count + tl.cumsum(number, 0) - number
        tl.store(c.columns + (each * T + t) * c.M + at, cols, mask=lives)
        count += tl.sum(number, 0)
    tl.store(c.counts + each * T + t, count)
