"""One step of decoding over the slots of a layer, in one launch: who leaves, attention, and F moved on by one query.

A program has one row of the batch and one key-value head. All programs of a row need F and the positions as they were
before the step, and the step changes both in place. So each finds out by itself which slot the new token takes (8 bytes
a slot, where its keys and values are 4 * D), writes the key and value of its own head there, and attends with the new
token's numbers put in from the call; then it counts itself as done. The last one of a row, when all have read, moves F
and the positions on. That needs one atomic counter for a row and no second launch, and no result depends on the order:
every number is written by one program, and its sum has one order.

F is in natural units here, as the slots have it.
"""

import triton
import triton.language as tl

from selattn.ops.backends.triton.kernels.common import LOG2E, NEVER, capped, constrained, spare_first, spare_self

SELECTIVE = tl.constexpr(0)  # as in `NUMBERS` of ../cache.py
WINDOW = tl.constexpr(3)


@triton.jit
def new_row(x, b, h, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """[PADDED] the new token's row of head h."""
    d = tl.arange(0, PADDED)
    return tl.load(x.data + b.to(tl.int64) * x.batch + h.to(tl.int64) * x.head + d, mask=d < SIZE, other=0.0)


@triton.jit
def slot_rows(stored, cols, slot, new, present, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """[slots, PADDED] of [C, SIZE], the new token's row in its slot: what is stored there is being replaced."""
    d = tl.arange(0, PADDED)
    at = cols.to(tl.int64)[:, None] * SIZE + d[None, :]
    old = tl.load(stored + at, mask=(present & (cols != slot))[:, None] & (d < SIZE)[None, :], other=0.0)
    return tl.where((cols == slot)[:, None], new[None, :], old)


@triton.jit
def pool_row(c, b, HOW: tl.constexpr):
    """The row of the pool that sequence b is in."""
    row = b.to(tl.int64)
    if HOW.rows:
        row = tl.load(c.rows + b)
    return row


@triton.jit
def positions_at(c, row, cols, slot, now):
    """Positions of the tokens in some slots, the new one among them; -1 for an empty slot."""
    found = tl.load(c.position + row * c.position_row + cols, mask=cols < c.used, other=-1)
    return tl.where(cols == slot, now, found)


@triton.jit
def free_slot(c, b, row, HOW: tl.constexpr, BC: tl.constexpr):
    """Where the new token goes: the first empty slot; if the budget is used up, the slot of the evicted token.

    That is the one of the highest rank; of equals not the first token of the sequence, then the oldest.
    """
    count, empty, slot = b * 0, b * 0 + c.C, b * 0
    highest = b.to(tl.float32) * 0.0 + float("-inf")
    oldest = b * 0 + NEVER
    for at in range(0, c.used, BC):
        cols = at + tl.arange(0, BC)
        inside = cols < c.used
        position = tl.load(c.position + row * c.position_row + cols, mask=inside, other=-1)
        held = position >= 0
        count += tl.sum(held.to(tl.int32), 0)
        empty = tl.minimum(empty, tl.min(tl.where(inside & (position < 0), cols, c.C), 0))
        if HOW.evicts:
            rank = tl.zeros((BC,), tl.float32)
            if HOW.policy == SELECTIVE:
                if HOW.select:  # F, the smallest of several masks
                    rank += float("inf")
                    for s in range(c.S):
                        f = tl.load(c.f + row * c.f_row + s * c.C + cols, mask=held, other=0.0)
                        rank = tl.minimum(rank, f)
            else:
                rank = tl.where(position < c.sinks, float("-inf"), -position.to(tl.float32))
            rank = tl.where(held, rank, float("-inf"))
            most = tl.max(rank, 0)
            worst = held & (rank == most)
            age = tl.where(position == 0, NEVER - 1, position)
            first = tl.min(tl.where(worst, age, NEVER), 0)
            here = tl.min(tl.where(worst & (age == first), cols, c.C), 0)
            wins = (most > highest) | ((most == highest) & (first < oldest))
            slot = tl.where(wins, here, slot)
            oldest = tl.where(wins, first, oldest)
            highest = tl.where(wins, most, highest)
    if HOW.evicts:
        empty = tl.where(count < c.budget, empty, slot)
    return empty


@triton.jit
def bias_at(c, x, b, h, cols, slot):
    """The bias of head h for some slots: that of the new token stands behind those of the others."""
    at = b.to(tl.int64) * x.batch + h.to(tl.int64) * x.head + tl.where(cols == slot, c.used, cols) * x.column
    return tl.load(x.data + at, mask=cols < c.used, other=float("-inf"))


@triton.jit
def selected_slots(c, b, row, s, cols, slot, position, now, seen, HOW: tl.constexpr):
    """S of mask s for some slots, which the query sees where `seen`."""
    h = tl.load(c.heads + s)
    g = h
    if not HOW.separate:
        g = h // (c.H // c.G)
    own = new_row(c.selecting_key, b, g, HOW.Ds, HOW.Ds_padded)
    stored = c.selecting_keys + row * c.selecting_row + g.to(tl.int64) * c.C * HOW.Ds
    keys = slot_rows(stored, cols, slot, own, seen, HOW.Ds, HOW.Ds_padded).to(tl.float32)
    query = new_row(c.selecting_query, b, h, HOW.Ds, HOW.Ds_padded).to(tl.float32)
    x = tl.sum(keys * query[None, :], 1) * c.selecting_scale
    if HOW.softcap and not HOW.separate:
        x = capped(x, c.cap)
    allowed = spare_first(spare_self(seen, cols != slot, HOW), position != 0, HOW)
    if HOW.bias:
        bias = bias_at(c, c.selecting_bias, b, h * 0 + s, cols, slot)
        allowed = allowed & (bias != float("-inf"))
        x += bias
    return tl.where(allowed, constrained(c, x, HOW), 0.0)


@triton.jit
def sees_slots(c, position, now, HOW: tl.constexpr):
    """Where the query sees the token of a slot."""
    seen = position >= 0
    if HOW.window:
        seen = seen & (now - position < c.window)
    return seen


@triton.jit
def f_of_slots(c, b, row, h, real, cols, slot, position, now, seen, HOW: tl.constexpr):
    """F [ROWS, BC] of the heads h that are real: what the slots have, and without the shift what this query selects."""
    follows = c.H // c.S
    mask = h // follows
    at = row * c.f_row + mask[:, None] * c.C + cols[None, :]
    f = tl.load(c.f + at, mask=real[:, None] & (seen & (cols != slot))[None, :], other=0.0)
    if not HOW.switches.shift:
        for s in range(c.S):
            S = selected_slots(c, b, row, s, cols, slot, position, now, seen, HOW)
            f += tl.where((mask == s)[:, None], S[None, :], 0.0)
    return f


@triton.jit
def move_on(c, b, row, slot, now, HOW: tl.constexpr, BC: tl.constexpr):
    """F after this query, and the new token's position and selecting key, into the slots."""
    if HOW.select:
        for at in range(0, c.used, BC):
            cols = at + tl.arange(0, BC)
            inside = cols < c.used
            position = positions_at(c, row, cols, slot, now)
            seen = sees_slots(c, position, now, HOW)
            for s in range(c.S):
                S = selected_slots(c, b, row, s, cols, slot, position, now, seen, HOW)
                to = c.f + row * c.f_row + s * c.C + cols
                f = tl.load(to, mask=inside & (cols != slot), other=0.0)
                tl.store(to, f + S, mask=inside)
        if HOW.separate:
            d = tl.arange(0, HOW.Ds_padded)
            for s in range(c.S):
                new = new_row(c.selecting_key, b, tl.load(c.heads + s), HOW.Ds, HOW.Ds_padded)
                tl.store(c.selecting_keys + row * c.selecting_row + (s * c.C + slot) * HOW.Ds + d, new, mask=d < HOW.Ds)
    tl.store(c.position + row * c.position_row + slot, now)


@triton.jit
def step(c, out, HOW: tl.constexpr, ROWS: tl.constexpr, BC: tl.constexpr):
    """The output [B, H, 1, Dv] of one query for each row of the batch; the slots are written to."""
    g, b = tl.program_id(0), tl.program_id(1)
    row, shared = pool_row(c, b, HOW), c.H // c.G
    now = tl.load(c.length + b).to(tl.int32)
    slot = free_slot(c, b, row, HOW, BC)
    key = new_row(c.key, b, g, HOW.D, HOW.D_padded)
    value = new_row(c.value, b, g, HOW.Dv, HOW.Dv_padded)

    each = tl.arange(0, ROWS)
    h = g * shared + each
    d = tl.arange(0, HOW.D_padded)
    real = each < shared
    at = b.to(tl.int64) * c.query.batch + h.to(tl.int64)[:, None] * c.query.head + d[None, :]
    q = tl.load(c.query.data + at, mask=real[:, None] & (d < HOW.D)[None, :], other=0.0)
    DV: tl.constexpr = HOW.Dv_padded
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    output = tl.zeros((ROWS, DV), tl.float32)
    keys = c.stored_keys + row * c.keys_row + g.to(tl.int64) * c.C * HOW.D
    values = c.stored_values + row * c.values_row + g.to(tl.int64) * c.C * HOW.Dv
    for begin in range(0, c.used, BC):
        cols = begin + tl.arange(0, BC)
        position = positions_at(c, row, cols, slot, now)
        seen = sees_slots(c, position, now, HOW)
        k = slot_rows(keys, cols, slot, key, seen, HOW.D, HOW.D_padded)
        v = slot_rows(values, cols, slot, value, seen, HOW.Dv, HOW.Dv_padded)
        x = tl.dot(q, tl.trans(k), input_precision=HOW.precision) * c.scale
        if HOW.softcap:
            x = capped(x, c.cap)
        if HOW.bias:
            x += bias_at(c, c.bias, b, tl.where(real, h, 0)[:, None], cols[None, :], slot)
        if HOW.select:
            x -= f_of_slots(c, b, row, h, real, cols, slot, position, now, seen, HOW)
        x = tl.where(seen[None, :], x * LOG2E, float("-inf"))
        most = tl.maximum(top, tl.max(x, 1))
        safe = tl.where(most == float("-inf"), 0.0, most)  # a tile of slots that are not seen
        factor = tl.exp2(top - safe)
        weights = tl.exp2(x - safe[:, None])
        total = total * factor + tl.sum(weights, 1)
        output = tl.dot(weights.to(v.dtype), v, output * factor[:, None], input_precision=HOW.precision)
        top = most
    dv = tl.arange(0, HOW.Dv_padded)
    to = (b.to(tl.int64) * c.H + h)[:, None] * HOW.Dv + dv[None, :]
    found = output / tl.where(total == 0, 1.0, total)[:, None]  # a bias can hide all slots
    takes_part = now >= 0
    if HOW.some:  # a token that is padding leaves the slots as they are, and gives zeros
        takes_part = tl.load(c.real + b) != 0
        found = tl.where(takes_part, found, 0.0)
    tl.store(out + to, found.to(out.dtype.element_ty), mask=real[:, None] & (dv < HOW.Dv)[None, :])
    tl.store(keys + slot * HOW.D + d, key, mask=d < tl.where(takes_part, HOW.D, 0))
    tl.store(values + slot * HOW.Dv + dv, value, mask=dv < tl.where(takes_part, HOW.Dv, 0))

    tl.debug_barrier()  # all threads have read before this program counts as done
    done = tl.atomic_add(c.done + b, 1)
    if done == c.G - 1:
        if takes_part:
            move_on(c, b, row, slot, now, HOW, BC)
        tl.store(c.done + b, 0)  # for the next step
