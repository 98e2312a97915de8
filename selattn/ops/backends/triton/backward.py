"""The backward pass: which kernels, in which order."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import torch
from torch import Tensor

from selattn.ops.backends.triton.arguments import Call, How
from selattn.ops.backends.triton.configs import Config
from selattn.ops.backends.triton.forward import Found, blocks, heads_together, with_lists
from selattn.ops.backends.triton.launch import launch, on
from selattn.ops.backends.triton.prepare import prepare, rows_of
from selattn.ops.operator import Came, Saved
from selattn.ops.request import Request

STRIP_BYTES = 128 << 20  # of dF that are held at once


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
        upstream = _Upstream(
            torch.zeros_like(found.output) if d_output is None else d_output.to(r.query.dtype),
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
