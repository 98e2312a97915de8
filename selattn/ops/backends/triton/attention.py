"""Attention by the kernels: which of them, in which order, forward and backward, and the operator that they make."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import torch
from torch import Tensor

from selattn.ops.backends.triton.configs import Config, Tile
from selattn.ops.backends.triton.prepare import (
    Call,
    How,
    Prepared,
    config_of,
    launch,
    may_leave_out,
    on,
    prepare,
    rows_of,
)
from selattn.ops.operator import Came, Operator, Saved
from selattn.ops.request import Request

CHUNK = 1024  # keys that a program looks at in one go when it lists the living
STRIP_BYTES = 128 << 20  # of dF that are held at once


class Found(NamedTuple):
    """What the forward pass gives; empty for what was not asked for."""

    output: Tensor  # [B, H, N, Dv]
    lse: Tensor  # [B, H, N] fp32, base 2
    memory: Tensor  # [B, S, N] fp32
    final_f: Tensor  # [B, S, M] fp32
    living: Tensor  # [B] fp64
    block_f: Tensor  # [B, S, T, M] fp32, base 2
    dead: Tensor  # [B, S, M] int32


def shapes(r: Request) -> Found:
    """Empty tensors for it."""
    (batch, heads, count, _), keys, masks = r.query.shape, r.key.shape[2], r.masks
    exact = r.query.new_empty(0, dtype=torch.float32)
    blocks = -(-count // config_of(r).rows)
    return Found(
        output=r.query.new_empty(batch, heads, count, r.value.shape[3]),
        lse=exact.new_empty(batch, heads, count),
        memory=exact.new_empty((batch, masks, count) if r.wanted.memory else 0),
        final_f=exact.new_empty((batch, masks, keys) if r.wanted.final_f else 0),
        living=exact.new_empty(batch if r.wanted.living else 0, dtype=torch.float64),
        block_f=exact.new_empty((batch, masks, blocks, keys) if masks else 0),
        dead=exact.new_empty((batch, masks, keys) if may_leave_out(r) else 0, dtype=torch.int32),
    )


def forward(r: Request) -> Found:
    """Run the kernels of the forward pass: output, log-sum-exp, M, F, and what the backward pass needs."""
    from selattn.ops.backends.triton.kernels.attend import attend

    found = shapes(r)
    if r.query.shape[0] == 0:
        return found
    with on(r.query.device):
        ready = prepare(r)
        call = select(ready, found, r)
        call = with_lists(call, ready.how, ready.config, found.dead)
        tile = ready.config.attend
        count, same = heads_together(tile, call, ready.how)
        launch(
            attend,
            (blocks(call, ready.config), call.H // count, r.query.shape[0]),
            *(call, found.output, found.lse, found.memory, ready.how),
            HEADS=count,
            SAME=same,
            BM=ready.config.rows,
            BN=tile.keys,
            **tile.effort(),
        )
        if r.wanted.living:
            found.living.copy_(living_share(r, call, ready.config.rows, found.dead))
        return found


def select(ready: Prepared, found: Found, r: Request) -> Call:
    """F at the first row of each block, who is dead from there, and the final F; `found` is written to."""
    from selattn.ops.backends.triton.kernels.select import bounds
    from selattn.ops.backends.triton.kernels.select import select as run

    call, how, config = ready
    if not how.select:
        return call
    call = call._replace(block_f=found.block_f)
    batch, reach, own = r.query.shape[0], None, None
    sizes: tuple[Tensor | None, Tensor | None] = (None, None)
    if how.dies:
        reach, own = (found.lse.new_empty(batch, call.H, blocks(call, config)) for _ in range(2))
        launch(
            bounds,
            (blocks(call, config), call.H, batch),
            call,
            reach,
            own,
            how,
            BM=config.rows,
            num_warps=4,
            num_stages=1,
        )
        # They have to hold for all later rows.
        reach, own = reach.flip(-1).cummax(-1).values.flip(-1), own.flip(-1).cummin(-1).values.flip(-1)
        sizes = sizes_of(r)
    tile, together = config.select, 1 << (call.H // call.S - 1).bit_length()
    launch(
        run,
        (-(-call.M // tile.keys), call.S, batch),
        *(call, reach, own, *sizes, found.dead, found.final_f, how),
        HEADS=together,
        BM=config.rows,
        BN=tile.keys,
        **tile.effort(),
    )
    return call


def sizes_of(r: Request) -> tuple[Tensor, Tensor]:
    """[B, G, M] fp32: |k_j|, and what the size of a value adds to the bound of its column, in base 2.

    That is log2(|v_j| / |v_s|) where it is positive, with |v| the size of a value's largest number and |v_s| the
    smallest of these in the head, but for 0 and padding; infinite where the key or the value is not finite.
    """
    key, value, start = r.key, r.value, r.start
    lengths = torch.linalg.vector_norm(key, dim=-1, dtype=torch.float32).contiguous()
    sizes = torch.linalg.vector_norm(value, torch.inf, dim=-1, dtype=torch.float32)
    counts = sizes > 0
    if start is not None:
        counts = counts & (start <= torch.arange(start.shape[-1], device=start.device)).unsqueeze(1)
    least = sizes.masked_fill(~counts, torch.inf).amin(-1, keepdim=True)
    more = (sizes / least.clamp(max=torch.finfo(torch.float32).max)).log2().clamp(min=0.0)
    return lengths, more.masked_fill(~(lengths + sizes).isfinite(), torch.inf).contiguous()


def with_lists(call: Call, how: How, config: Config, dead: Tensor) -> Call:
    """The call with the lists of living columns, if there are such."""
    from selattn.ops.backends.triton.kernels.select import list_columns

    if not how.gather:
        return call
    assert call.query.data is not None
    query, count = call.query.data, blocks(call, config)
    columns = query.new_empty(query.shape[0], how.lists, count, call.M, dtype=torch.int32)
    call = call._replace(columns=columns, counts=columns.new_empty(columns.shape[:3]))
    launch(
        list_columns,
        (count, how.lists, query.shape[0]),
        *(call, dead, how),
        BM=config.rows,
        CHUNK=CHUNK,
        num_warps=4,
        num_stages=1,
    )
    return call


def blocks(call: Call, config: Config) -> int:
    """How many blocks of rows a call has, T."""
    return -(-call.N // config.rows)


def heads_together(tile: Tile, call: Call, how: How) -> tuple[int, bool]:
    """How many heads share F in one program, and whether they share keys and values, too."""
    follow = call.H // call.S if how.select else 1
    count = next(n for n in range(min(tile.heads, follow), 0, -1) if follow % n == 0)
    return count, (call.H // call.G) % count == 0


def living_share(r: Request, call: Call, block: int, dead: Tensor) -> Tensor:
    """[B] fp64: of the visible pairs, those that were computed, over all masks; 1 where there is nothing to see."""
    batch, keys, offset = r.query.shape[0], call.M, call.M - call.N
    device = r.query.device
    index = torch.arange(keys, device=device)
    real = (index >= offset).expand(batch, -1).clone()
    if call.rows is not None:
        real[:, offset:] &= call.rows >= 0
    before = torch.nn.functional.pad(real.long().cumsum(-1), (1, 0)).unsqueeze(1)  # [B, 1, M + 1] real rows before
    last = index.new_full((batch, 1, keys), keys) if call.last is None else call.last.long()

    def pairs(end: Tensor) -> Tensor:
        begin = torch.minimum(index.expand_as(end), end)
        wide = before.expand(-1, end.shape[1], -1)
        return (wide.gather(-1, end) - wide.gather(-1, begin)).sum((1, 2))

    if dead.numel() == 0:
        return torch.ones(batch, dtype=torch.float64, device=device)
    end = (dead.long() * block + offset).clamp(max=keys)  # [B, S, M]
    each = [torch.minimum(last, end[:, s : s + 1]) for s in range(end.shape[1])]
    seen, lived = pairs(last) * len(each), sum((pairs(x) for x in each), torch.zeros_like(index[:1]))
    return torch.where(seen > 0, lived.double() / seen.clamp(min=1), 1.0)


class _Upstream(NamedTuple):
    """What comes from above, and what is rebuilt from it for all kernels."""

    d_output: Tensor
    delta: Tensor
    memory: Tensor | None
    final_f: Tensor | None


class _Selecting(NamedTuple):
    """What selection adds: to the queries and keys of the selecting heads (not scaled yet), and to the initial F."""

    query: Tensor  # [B, S, N, Ds] fp32
    key: Tensor  # [B, S, M, Ds] fp32
    initial_f: Tensor  # [B, S, M] fp32


def backward(r: Request, saved: Saved, came: Came, needed: frozenset[str]) -> dict[str, Tensor | None]:
    """Run it: gradients by the names of the request's tensors. `saved` is what the forward pass gave."""
    from selattn.ops.backends.triton.kernels.d_selecting import row_products

    found = Found(**{**dict.fromkeys(Found._fields, saved["lse"].new_empty(0)), **saved})
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (r.query, r.key, r.value))
    if r.query.shape[0] == 0:
        given = {name: getattr(r, name) for name in needed}
        return {name: torch.zeros_like(x) for name, x in given.items()}
    d_output, d_memory, d_final_f = (came[name] for name in ("output", "memory", "final_f"))
    with on(r.query.device):
        call, how, config = prepare(r)
        call = with_lists(call._replace(block_f=found.block_f), how, config, found.dead)
        how = how._replace(memory=d_memory is not None)
        batch, grid = r.query.shape[0], (blocks(call, config), call.H, r.query.shape[0])
        d_output = torch.zeros_like(found.output) if d_output is None else d_output.to(r.query.dtype)
        if call.rows is not None:  # whatever comes back to padding
            d_output = d_output.masked_fill((call.rows < 0)[:, None, :, None], 0.0)
        upstream = _Upstream(
            d_output,
            torch.empty_like(found.lse),
            None if d_memory is None else d_memory.to(torch.float32).contiguous(),
            d_final_f,
        )
        launch(
            row_products,
            grid,
            *(rows_of(found.output), rows_of(upstream.d_output), upstream.delta, call.N, how),
            BM=config.rows,
            num_warps=4,
            num_stages=1,
        )
        d_bias = found.lse.new_zeros(batch, call.H, call.N, call.M) if "bias" in needed else None
        order = order_of_keys(call, how, config, found.dead)
        selecting = _selecting(call, how, config, found, upstream, order, d_bias) if how.select else None
        _keys(call, how, config, found, upstream, order, selecting, (dk, dv))
        _queries(call, how, config, found, upstream, selecting, dq, d_bias)
    gradients: dict[str, Tensor | None] = {"query": dq, "key": dk, "value": dv}
    if d_bias is not None and r.bias is not None:
        gradients["bias"] = d_bias.sum_to_size(r.bias.shape)
    if selecting is not None:
        gradients["initial_f"] = selecting.initial_f
    if selecting is not None and how.separate:
        scale = how.Ds**-0.5
        gradients |= {"selection_query": selecting.query * scale, "selection_key": selecting.key * scale}
    return gradients


def order_of_keys(call: Call, how: How, config: Config, dead: Tensor) -> Tensor | None:
    """[B, S or 1, M] int32: the keys in the order in which they are seen for the last time; None for their own order.

    One order for each mask if every key-value head follows one mask, else one for all.
    """
    if not how.gather:
        return None
    offset, ends = call.M - call.N, None
    if how.dies:
        ends = (dead.long() * config.rows + offset).clamp(max=call.M)
        if call.G % call.S:
            ends = ends.amax(1, keepdim=True)
    if call.last_any is not None:
        last = call.last_any.long().unsqueeze(1)
        ends = last if ends is None else torch.minimum(ends, last)
    assert ends is not None
    return ends.argsort(dim=-1, stable=True).to(torch.int32)


def _selecting(
    call: Call,
    how: How,
    config: Config,
    found: Found,
    upstream: _Upstream,
    order: Tensor | None,
    d_bias: Tensor | None,
) -> _Selecting:
    """Strips of rows from the last to the first: dF of all heads, then what it means for the selecting ones."""
    from selattn.ops.backends.triton.kernels.d_selecting import d_forgetting, d_selecting_keys, d_selecting_queries

    assert call.query.data is not None
    batch, size, total = call.query.data.shape[0], config.rows, blocks(call, config)
    whole = upstream.final_f is not None
    end = -(-(call.N + how.switches.shift) // size) if whole else total  # type: ignore[attr-defined]  # its fields are made
    dq = found.lse.new_zeros(batch, call.S, call.N, how.Ds)
    dk = found.lse.new_zeros(batch, call.S, call.M, how.Ds)
    if upstream.final_f is None:
        later = found.lse.new_zeros(batch, call.S, call.M)
    else:
        later = upstream.final_f.to(torch.float32).clone(memory_format=torch.contiguous_format)
    count = max(1, min(end, STRIP_BYTES // (4 * batch * call.S * call.M * size)))
    strip = count * size
    df = found.lse.new_empty(batch, call.S, strip, call.M)
    orders = 1 if order is None else order.shape[1]
    each, tile = config.d_selecting, config.d_forgetting
    for last in range(end, 0, -count):
        first = max(0, last - count)
        launch(
            d_forgetting,
            (-(-call.M // tile.keys), min(last, total) - first, batch * call.S),
            *(call, rows_of(upstream.d_output), found.lse, upstream.delta, upstream.memory, df, first, strip, how),
            BM=size,
            BN=tile.keys,
            **tile.effort(),
        )
        # Masks one after the other where they might add to the same head's bias.
        for mask, masks in [(0, call.S)] if d_bias is None else [(s, 1) for s in range(call.S)]:
            launch(
                d_selecting_keys,
                (-(-call.M // each.keys), masks, batch),
                *(call, df, found.dead, order, later, dk, d_bias, first, last, strip, mask, how),
                ORDERS=orders,
                WHOLE=whole,
                BIAS=d_bias is not None and not how.separate,
                BM=size,
                BN=each.keys,
                **each.effort(),
            )
        launch(
            d_selecting_queries,
            (last - first, call.S, batch),
            *(call, df, dq, first, strip, how),
            WHOLE=whole,
            BM=size,
            BN=each.keys,
            **each.effort(),
        )
    return _Selecting(dq, dk, later)


def _keys(
    call: Call,
    how: How,
    config: Config,
    found: Found,
    upstream: _Upstream,
    order: Tensor | None,
    selecting: _Selecting | None,
    to: tuple[Tensor, Tensor],
) -> None:
    from selattn.ops.backends.triton.kernels.d_keys import d_keys

    assert call.query.data is not None
    tile, shared = config.d_keys, call.H // call.G
    common = gcd(shared, call.H // call.S) if how.select else 1
    launch(
        d_keys,
        (-(-call.M // tile.keys), call.G, call.query.data.shape[0]),
        *(call, rows_of(upstream.d_output), found.lse, upstream.delta, found.dead, order),
        *(None if selecting is None else selecting.key, *to, how),
        ORDERS=1 if order is None else order.shape[1],
        HEADS=next(n for n in range(min(tile.heads, common), 0, -1) if common % n == 0),
        BM=config.rows,
        BN=tile.keys,
        **tile.effort(),
    )


def _queries(
    call: Call,
    how: How,
    config: Config,
    found: Found,
    upstream: _Upstream,
    selecting: _Selecting | None,
    to: Tensor,
    d_bias: Tensor | None,
) -> None:
    from selattn.ops.backends.triton.kernels.d_keys import d_queries

    tile = config.d_queries
    count, same = heads_together(tile, call, how)
    launch(
        d_queries,
        (blocks(call, config), call.H // count, to.shape[0]),
        *(call, rows_of(upstream.d_output), found.lse, upstream.delta),
        *(None if selecting is None else selecting.query, to, d_bias, how),
        BIAS=d_bias is not None,
        HEADS=count,
        SAME=same,
        BM=config.rows,
        BN=tile.keys,
        **tile.effort(),
    )


OPERATOR = Operator(
    "triton",
    results=Found,
    forward=forward,
    shapes=shapes,
    backward=backward,
    saved=("output", "lse", "block_f", "dead"),
    gradients=("query", "key", "value", "selection_query", "selection_key", "bias", "initial_f"),
)
