"""What the kernels share: rows of tensors, what a row sees, logits, S and F of a tile.

A tile is BM rows of queries by BN keys, or the other way round: these functions take row and key numbers that are
expanded already ([BM, 1] and [1, BN], or [1, BM] and [BN, 1]), and work for both.

All logits, and F with them, are in base 2: multiplied by log2(e), so that weights are exp2 of them.

The rows whose S counts for the rows of a block are its "sources": with the shift, the rows one before. So the queries
of the selecting head are read one row further up, and F is an inclusive running sum of their S. Subtracting S from such
a sum instead would make F fall here and there, and leave a little of it where nothing was selected.

All addresses are made of int64: a tensor may have more than 2^31 elements.
"""

# No `from __future__ import annotations` here: Triton reads what stands behind the colons.
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
NEVER = tl.constexpr(2**31 - 1)  # a row, or a block, that no sequence reaches


# The constraints and the shift of `Selection`: the one place that asks for them. They come as `HOW.switches`, made in
# ../prepare.py: numbers, 1 or 0, that are known when a kernel is compiled.


@triton.jit
def source_rows(r, HOW: tl.constexpr):
    """The rows whose S counts for rows r, and not for those before: with the shift, the rows one further up."""
    return r - HOW.switches.shift


@triton.jit
def rows_of_f(c, HOW: tl.constexpr):
    """How many rows F has if it goes on after the last query: with the shift, that one's S needs one more."""
    return c.N + HOW.switches.shift


@triton.jit
def spare_first(allowed, later, HOW: tl.constexpr):
    """Where a token may be selected: those `allowed`, and under constraint 2 only those `later` than the first."""
    if HOW.switches.protect_first:
        allowed = allowed & later
    return allowed


@triton.jit
def spare_self(allowed, others, HOW: tl.constexpr):
    """Where a token may be selected: those `allowed`, and under constraint 3 only `others` than the query's own."""
    if HOW.switches.protect_self:
        allowed = allowed & others
    return allowed


@triton.jit
def constrained(c, x, HOW: tl.constexpr):
    """S from the logits x of the selecting head: relu and strength. Who may be selected is not asked here."""
    if HOW.switches.relu:
        x = tl.where(x <= 0, 0.0, x)  # in this form NaN stays NaN
    if HOW.strength:
        x *= tl.load(c.strength)
    return x


@triton.jit
def reaches_logits(allowed, x, HOW: tl.constexpr):
    """Where a gradient of S goes on to the logits x, of the pairs in which selection is `allowed`."""
    if HOW.switches.relu:
        allowed = allowed & (x > 0)
    return allowed


@triton.jit
def load_rows(x, b, h, rows, present, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """[rows, PADDED] of head h; 0 where a row is not present, and past SIZE."""
    d = tl.arange(0, PADDED)
    base = x.data + b.to(tl.int64) * x.batch + h.to(tl.int64) * x.head
    at = rows.to(tl.int64)[:, None] * x.row + d[None, :]
    mask = present[:, None]
    if SIZE < PADDED:
        mask = mask & (d < SIZE)[None, :]
    return tl.load(base + at, mask=mask, other=0.0)


@triton.jit
def store_rows(to, count, index, rows, present, values, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """Write [rows, PADDED] into a dense array [index, count, SIZE]."""
    d = tl.arange(0, PADDED)
    at = (index.to(tl.int64) * count + rows)[:, None] * SIZE + d[None, :]
    mask = present[:, None] & (d < SIZE)[None, :]
    tl.store(to + at, values.to(to.dtype.element_ty), mask=mask)


@triton.jit
def dense_rows(x, count, index, rows, present, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """[rows, PADDED] of a dense array [index, count, SIZE]; 0 where a row is not present, and past SIZE."""
    d = tl.arange(0, PADDED)
    at = (index.to(tl.int64) * count + rows)[:, None] * SIZE + d[None, :]
    return tl.load(x + at, mask=present[:, None] & (d < SIZE)[None, :], other=0.0)


@triton.jit
def row_numbers(c, b, r, HOW: tl.constexpr):
    """Positions of query rows r among the keys; -1, which sees nothing, for padding and for rows that do not exist."""
    inside = (r >= 0) & (r < c.N)
    if HOW.padded:
        i = tl.load(c.rows + b.to(tl.int64) * c.N + r, mask=inside, other=-1)
    else:
        i = tl.where(inside, r + (c.M - c.N), -1)
    return i


@triton.jit
def last_rows(c, b, h, cols, present, HOW: tl.constexpr):
    """One past the last row in which head h sees each key; 0 where a key is not present."""
    if HOW.last == 0:
        found = tl.where(present, NEVER, 0)
    else:
        each = b.to(tl.int64)
        if HOW.last == 2:  # of each key-value head
            each = each * c.G + h // (c.H // c.G)
        found = tl.load(c.last + each * c.M + cols, mask=present, other=0)
    return found


@triton.jit
def last_selecting(c, b, s, cols, present, HOW: tl.constexpr):
    """The same for the rows that may select a key; 0 where it is protected, too."""
    if HOW.last == 0:
        found = tl.where(spare_first(present, cols > 0, HOW), NEVER, 0)
    else:
        found = tl.load(c.last_selecting + (b.to(tl.int64) * c.S + s) * c.M + cols, mask=present, other=0)
    return found


@triton.jit
def entries(x, b, h, r, cols, inside, other):
    """Numbers of a matrix [batch, head, row, key] for broadcast row and key numbers."""
    at = b.to(tl.int64) * x.batch + h.to(tl.int64) * x.head + r.to(tl.int64) * x.row + cols.to(tl.int64) * x.column
    return tl.load(x.data + at, mask=inside, other=other)


@triton.jit
def shown(c, b, h, r, cols, seen, HOW: tl.constexpr):
    """What mask and bias of head h leave of what is seen; and the bias there in base 2, a plain 0 if there is none."""
    bias = 0.0
    if HOW.mask:
        seen = seen & (entries(c.mask, b, h, r, cols, seen, 0) != 0)
    if HOW.bias:
        bias = entries(c.bias, b, h, r, cols, seen, float("-inf"))
        seen = seen & (bias != float("-inf"))
        bias = tl.where(seen, bias * LOG2E, 0.0)
    return seen, bias


@triton.jit
def sees(c, b, h, i, r, cols, last, HOW: tl.constexpr):
    """Where row i (query r) of head h sees key `cols`, and the bias there, as `shown` gives it."""
    return shown(c, b, h, r, cols, (cols <= i) & (i < last), HOW)


@triton.jit
def selection_sees(c, b, s, i, r, cols, present, HOW: tl.constexpr):
    """Where the selecting head of mask s sees a key; i and r [rows, 1]. A form sees what a head of its own does."""
    if HOW.separate:
        if HOW.last == 2:
            last = tl.load(c.last_form + (b.to(tl.int64) * c.S + s) * c.M + cols, mask=present, other=0)
        else:
            last = last_rows(c, b, s, cols, present, HOW)
        seen = (cols[None, :] <= i) & (i < last[None, :])
        if HOW.selecting_mask:
            seen = seen & (entries(c.selecting_mask, b, s, r, cols[None, :], seen, 0) != 0)
    else:
        h = tl.load(c.heads + s)
        last = last_rows(c, b, h, cols, present, HOW)
        seen, _ = sees(c, b, h, i, r, cols[None, :], last[None, :], HOW)
    return seen


@triton.jit
def capped(x, cap):
    """cap * tanh(x / cap). Where x is small, 1 - e would lose its digits: there, Lambert's fraction for tanh."""
    size = tl.abs(x)
    y = size / cap
    z = y * y
    e = tl.exp2(y * (-2.0 * LOG2E))
    above = size * (135135.0 + z * (17325.0 + z * (378.0 + z)))
    below = 135135.0 + z * (62370.0 + z * (3150.0 + z * 28.0))
    found = tl.where(y < 0.5, above / below, cap * (1.0 - e) / (1.0 + e))
    return tl.where(x < 0, -found, found)


@triton.jit
def slope(y, cap):
    """The derivative of `capped`, from its result."""
    return 1.0 - (y / cap) * (y / cap)


@triton.jit
def logits(c, products, HOW: tl.constexpr):
    """Of a head, from its products of queries and keys: scale and soft cap. No bias yet, which has no slope."""
    x = products * c.scale
    if HOW.softcap:
        x = capped(x, c.cap)
    return x


@triton.jit
def selecting_logits(c, products, HOW: tl.constexpr):
    """Of the selecting head, likewise; a separate form has a scale of its own and no soft cap."""
    if HOW.separate:
        x = products * c.selecting_scale
    else:
        x = products * c.scale
        if HOW.softcap:
            x = capped(x, c.cap)
    return x


@triton.jit
def may_select(c, b, s, i, r, cols, last, HOW: tl.constexpr):
    """Where source row i (query r) may select a key, and the bias of its logits. `last`: see `last_selecting`."""
    allowed = spare_self((cols <= i) & (i < last), cols != i, HOW)
    bias = 0.0
    if not HOW.separate:
        allowed, bias = shown(c, b, tl.load(c.heads + s), r, cols, allowed, HOW)
    elif HOW.selecting_mask:
        allowed = allowed & (entries(c.selecting_mask, b, s, r, cols, allowed, 0) != 0)
    return allowed, bias


@triton.jit
def selecting_rows(c, b, s, r, HOW: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """[rows, PADDED] the selecting queries of rows r."""
    return load_rows(c.selecting_query, b, tl.load(c.heads + s), r, (r >= 0) & (r < c.N), SIZE, PADDED)


@triton.jit
def selecting_keys(c, b, s, cols, present, HOW: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """[keys, PADDED] what the selecting queries are multiplied with."""
    h = tl.load(c.heads + s)
    if not HOW.separate:
        h = h // (c.H // c.G)
    return load_rows(c.selecting_key, b, h, cols, present, SIZE, PADDED)


@triton.jit
def selected(c, b, s, products, i, r, cols, last, HOW: tl.constexpr):
    """S of a tile, from the products of selecting queries and keys; i, r: its source rows."""
    allowed, bias = may_select(c, b, s, i, r, cols, last, HOW)
    x = selecting_logits(c, products, HOW)
    if HOW.bias:
        x += bias
    return tl.where(allowed, constrained(c, x, HOW), 0.0)


@triton.jit
def columns_of(c, b, s, t, BM: tl.constexpr, HOW: tl.constexpr):
    """The keys of a block of rows: where their list begins, the first one if there is no list, and how many."""
    T = tl.cdiv(c.N, BM)
    lists = b.to(tl.int64) * HOW.lists + s
    begin = 0
    if HOW.gather:
        count = tl.load(c.counts + lists * T + t)
    else:
        if HOW.low:
            begin = tl.load(c.low + b.to(tl.int64) * T + t)
        count = tl.minimum(c.M, c.M - c.N + (t + 1) * BM) - begin
    return (lists * T + t) * c.M, begin, count


@triton.jit
def columns_at(c, list_at, begin, count, at, BN: tl.constexpr, HOW: tl.constexpr):
    """BN of these keys, from the one numbered `at` on, and whether there are as many."""
    index = at + tl.arange(0, BN)
    present = index < count
    if HOW.gather:
        cols = tl.load(c.columns + list_at + index, mask=present, other=0)
    else:
        cols = tl.where(present, begin + index, 0)
    return cols, present


@triton.jit
def f_of_rows(c, b, s, t, qs, i, r, cols, present, BM: tl.constexpr, HOW: tl.constexpr):
    """F [BM, BN] of block t: what it begins with, and the running sum of its sources' S. qs: their queries."""
    T = tl.cdiv(c.N, BM)
    ks = selecting_keys(c, b, s, cols, present, HOW, HOW.Ds, HOW.Ds_padded)
    products = tl.dot(qs, tl.trans(ks), input_precision=HOW.precision)
    last = last_selecting(c, b, s, cols, present, HOW)
    S = selected(c, b, s, products, i[:, None], r[:, None], cols[None, :], last[None, :], HOW)
    begin = tl.load(c.block_f + ((b.to(tl.int64) * c.S + s) * T + t) * c.M + cols, mask=present, other=0.0)
    return begin[None, :] + tl.cumsum(S, 0)


@triton.jit
def keys_at(c, order, dead, b, s, n, BM: tl.constexpr, BN: tl.constexpr, HOW: tl.constexpr, ORDERS: tl.constexpr):
    """The keys of program n, in the order in which they die; whether there are as many; the row they die in."""
    at = n * BN + tl.arange(0, BN)
    present = at < c.M
    cols = tl.where(present, at, 0)
    if HOW.gather:
        which = b.to(tl.int64) * ORDERS + s * ORDERS // c.S
        cols = tl.load(order + which * c.M + at, mask=present, other=0)
    dies = tl.where(present, NEVER, 0)
    if HOW.dies:
        block = tl.load(dead + (b.to(tl.int64) * c.S + s) * c.M + cols, mask=present, other=0)
        dies = tl.where(block == NEVER, NEVER, c.M - c.N + block * BM)
    return cols, present, tl.where(present, dies, 0)


@triton.jit
def blocks_of(c, cols, present, last, BM: tl.constexpr):
    """The blocks of rows, from the first to one past the last, in which some row sees one of the keys until `last`."""
    T = tl.cdiv(c.N, BM)
    offset = c.M - c.N
    earliest = tl.min(tl.where(present, cols, c.M), 0)
    begin = tl.maximum(earliest - offset, 0) // BM
    latest = tl.minimum(tl.max(last, 0), c.M)
    end = tl.minimum(T, tl.cdiv(tl.maximum(latest - offset, 0), BM))
    return begin, end
