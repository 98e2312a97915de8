"""Attention by the kernels: which of them, in which order, forward and backward, and the operator that they make."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import torch
from torch import Tensor

from selattn.ops import sequences
from selattn.ops.autograd import Came, Operator, Saved
from selattn.ops.backends.triton.configs import Config, Tile
from selattn.ops.backends.triton.prepare import (
    AttentionArguments,
    How,
    config_of,
    launch,
    may_leave_out,
    on,
    prepare,
    rows_of,
)
from selattn.ops.request import Request

CHUNK = 1024  # keys that a program looks at in one go when it lists the living
STRIP_BYTES = 128 << 20  # of dF that are held at once


class TritonResults(NamedTuple):
    """The results of the forward pass; empty for what was not asked for."""

    output: Tensor  # [B, H, N, Dv]
    lse: Tensor  # [B, H, N] fp32, base 2
    memory: Tensor  # [B, S, N] fp32
    final_f: Tensor  # [B, S, M] fp32
    living: Tensor  # [B] fp64
    block_f: Tensor  # [B, S, T, M] fp32, base 2
    dead: Tensor  # [B, S, M] int32


def shapes(r: Request) -> TritonResults:
    """Empty tensors of the results' shapes."""
    (batch, heads, count, _), keys, masks = r.query.shape, r.key.shape[2], r.masks
    exact = r.query.new_empty(0, dtype=torch.float32)
    blocks = -(-count // config_of(r).rows)
    return TritonResults(
        output=r.query.new_empty(batch, heads, count, r.value.shape[3]),
        lse=exact.new_empty(batch, heads, count),
        memory=exact.new_empty((batch, masks, count) if r.wanted.memory else 0),
        final_f=exact.new_empty((batch, masks, keys) if r.wanted.final_f else 0),
        living=exact.new_empty(batch if r.wanted.living else 0, dtype=torch.float64),
        block_f=exact.new_empty((batch, masks, blocks, keys) if masks else 0),
        dead=exact.new_empty((batch, masks, keys) if may_leave_out(r) else 0, dtype=torch.int32),
    )


def forward(r: Request) -> TritonResults:
    """Run the kernels of the forward pass: output, log-sum-exp, M, F, and what the backward pass needs."""
    from selattn.ops.backends.triton.kernels.attend import attend

    results = shapes(r)
    if r.query.shape[0] == 0:
        return results
    with on(r.query.device):
        call, how, config = prepare(r)
        call = with_lists(select(call, how, config, results, r), how, config, results.dead)
        tile = config.attend
        count, same = heads_together(tile, call, how)
        launch(
            attend,
            (blocks(call, config), call.H // count, r.query.shape[0]),
            *(call, results.output, results.lse, results.memory, how),
            HEADS=count,
            SAME=same,
            BM=config.rows,
            BN=tile.keys,
            **tile.effort(),
        )
        if r.wanted.living:
            results.living.copy_(living_share(r, config.rows, results.dead))
        return results


def select(
    call: AttentionArguments, how: How, config: Config, results: TritonResults, r: Request
) -> AttentionArguments:
    """F at the first row of each block, the columns that are dead from there, and the final F, all in `results`."""
    from selattn.ops.backends.triton.kernels.select import bounds
    from selattn.ops.backends.triton.kernels.select import select as run

    if not how.select:
        return call
    call = call._replace(block_f=results.block_f)
    batch, reach, own = r.query.shape[0], None, None
    sizes: tuple[Tensor | None, Tensor | None] = (None, None)
    if how.dies:
        reach, own = (results.lse.new_empty(batch, call.H, blocks(call, config)) for _ in range(2))
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
        *(call, reach, own, *sizes, results.dead, results.final_f, how),
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


def with_lists(call: AttentionArguments, how: How, config: Config, dead: Tensor) -> AttentionArguments:
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


def blocks(call: AttentionArguments, config: Config) -> int:
    """How many blocks of rows a call has, T."""
    return -(-call.N // config.rows)


def heads_together(tile: Tile, call: AttentionArguments, how: How) -> tuple[int, bool]:
    """How many heads share F in one program, and whether they share keys and values, too."""
    follow = call.H // call.S if how.select else 1
    count = next(n for n in range(min(tile.heads, follow), 0, -1) if follow % n == 0)
    return count, (call.H // call.G) % count == 0


def living_share(r: Request, block: int, dead: Tensor) -> Tensor:
    """[B] fp64: of the visible pairs, those that were computed, over all masks; 1 where there is nothing to see."""
    batch, rows, keys, window = r.query.shape[0], r.query.shape[2], r.key.shape[2], r.rules.window
    if dead.numel() == 0:
        return torch.ones(batch, dtype=torch.float64, device=r.query.device)
    end = (dead.long() * block + r.offset).clamp(max=keys).unsqueeze(1)  # [B, 1, S, M]
    every = torch.full_like(end, keys) if r.until is None else r.until.unsqueeze(2).expand(-1, -1, end.shape[2], -1)
    until, end = every.flatten(1, 2), torch.minimum(every, end).flatten(1, 2)  # [B, 1 or G times S, M]
    living = torch.stack([sequences.visible_pairs(r.start, x, window, rows, keys) for x in end.unbind(1)]).sum(0)
    return sequences.living_share(r.start, until, window, rows, keys, living)


def backward(r: Request, saved: Saved, came: Came, needed: frozenset[str]) -> dict[str, Tensor | None]:
    """Gradients by the names of the request's tensors. `saved` is what the forward pass gave."""
    if r.query.shape[0] == 0:
        return {name: torch.zeros_like(getattr(r, name)) for name in needed}
    with on(r.query.device):
        return _Backward(r, saved, came, needed).gradients()


class _Backward:
    """The kernels of the backward pass, and what they share."""

    def __init__(self, r: Request, saved: Saved, came: Came, needed: frozenset[str]) -> None:
        from selattn.ops.backends.triton.kernels.d_selecting import row_products

        self.r, self.lse, self.dead = r, saved["lse"], saved["dead"]
        self.call, how, self.config = prepare(r)
        self.call = with_lists(self.call._replace(block_f=saved["block_f"]), how, self.config, self.dead)
        d_memory, self.d_final_f = came["memory"], came["final_f"]
        self.how = how._replace(memory=d_memory is not None)
        self.d_memory = None if d_memory is None else d_memory.to(torch.float32).contiguous()
        output, d_output = saved["output"], came["output"]
        d_output = torch.zeros_like(output) if d_output is None else d_output.to(r.query.dtype)
        if self.call.rows is not None:  # whatever comes back to padding
            d_output = d_output.masked_fill((self.call.rows < 0)[:, None, :, None], 0.0)
        self.d_output, self.delta = rows_of(d_output), torch.empty_like(self.lse)
        launch(
            row_products,
            (blocks(self.call, self.config), self.call.H, r.query.shape[0]),
            *(rows_of(output), self.d_output, self.delta, self.call.N, self.how),
            BM=self.config.rows,
            num_warps=4,
            num_stages=1,
        )
        shape = (r.query.shape[0], self.call.H, self.call.N, self.call.M)
        self.d_bias = self.lse.new_zeros(shape) if "bias" in needed else None
        self.order = order_of_keys(self.call, self.how, self.config, self.dead)

    def gradients(self) -> dict[str, Tensor | None]:
        """All of them."""
        r = self.r
        dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (r.query, r.key, r.value))
        # What selection adds: to queries and keys of the selecting heads (not scaled yet), and to the initial F.
        d_selecting_query, d_selecting_key, d_initial_f = self.selecting() if self.how.select else (None, None, None)
        self.keys(d_selecting_key, dk, dv)
        self.queries(d_selecting_query, dq)
        gradients: dict[str, Tensor | None] = {"query": dq, "key": dk, "value": dv, "initial_f": d_initial_f}
        if self.d_bias is not None and r.bias is not None:
            gradients["bias"] = self.d_bias.sum_to_size(r.bias.shape)
        if d_selecting_query is not None and d_selecting_key is not None and self.how.separate:
            scale = self.how.Ds**-0.5
            gradients |= {"selection_query": d_selecting_query * scale, "selection_key": d_selecting_key * scale}
        return gradients

    def selecting(self) -> tuple[Tensor, Tensor, Tensor]:
        """[B, S, N, Ds], [B, S, M, Ds] and [B, S, M], in fp32.

        Strips of rows from the last to the first: dF of all heads, then what it means for the selecting ones.
        """
        from selattn.ops.backends.triton.kernels.d_selecting import d_forgetting, d_selecting_keys, d_selecting_queries

        call, how, config, new = self.call, self.how, self.config, self.lse.new_zeros
        batch, size, total = self.r.query.shape[0], config.rows, blocks(call, config)
        whole = self.d_final_f is not None
        end = -(-(call.N + how.switches.shift) // size) if whole else total  # type: ignore[attr-defined]  # its fields are made
        dq, dk = new(batch, call.S, call.N, how.Ds), new(batch, call.S, call.M, how.Ds)
        if self.d_final_f is None:
            later = new(batch, call.S, call.M)
        else:
            later = self.d_final_f.to(torch.float32).clone(memory_format=torch.contiguous_format)
        count = max(1, min(end, STRIP_BYTES // (4 * batch * call.S * call.M * size)))
        strip = count * size
        df = self.lse.new_empty(batch, call.S, strip, call.M)
        each, tile = config.d_selecting, config.d_forgetting
        for last in range(end, 0, -count):
            first = max(0, last - count)
            launch(
                d_forgetting,
                (-(-call.M // tile.keys), min(last, total) - first, batch * call.S),
                *(call, self.d_output, self.lse, self.delta, self.d_memory, df, first, strip, how),
                BM=size,
                BN=tile.keys,
                **tile.effort(),
            )
            # Masks one after the other where they might add to the same head's bias.
            for mask, masks in [(0, call.S)] if self.d_bias is None else [(s, 1) for s in range(call.S)]:
                launch(
                    d_selecting_keys,
                    (-(-call.M // each.keys), masks, batch),
                    *(call, df, self.dead, self.order, later, dk, self.d_bias, first, last, strip, mask, how),
                    ORDERS=1 if self.order is None else self.order.shape[1],
                    WHOLE=whole,
                    BIAS=self.d_bias is not None and not how.separate,
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
        return dq, dk, later

    def keys(self, d_selecting_key: Tensor | None, dk: Tensor, dv: Tensor) -> None:
        """Gradients of keys and values."""
        from selattn.ops.backends.triton.kernels.d_keys import d_keys

        call, tile = self.call, self.config.d_keys
        shared = call.H // call.G
        common = gcd(shared, call.H // call.S) if self.how.select else 1
        launch(
            d_keys,
            (-(-call.M // tile.keys), call.G, dk.shape[0]),
            *(call, self.d_output, self.lse, self.delta, self.dead, self.order, d_selecting_key, dk, dv, self.how),
            ORDERS=1 if self.order is None else self.order.shape[1],
            HEADS=next(n for n in range(min(tile.heads, common), 0, -1) if common % n == 0),
            BM=self.config.rows,
            BN=tile.keys,
            **tile.effort(),
        )

    def queries(self, d_selecting_query: Tensor | None, dq: Tensor) -> None:
        """Gradients of queries, and of the bias where it is wanted."""
        from selattn.ops.backends.triton.kernels.d_keys import d_queries

        call, tile = self.call, self.config.d_queries
        count, same = heads_together(tile, call, self.how)
        launch(
            d_queries,
            (blocks(call, self.config), call.H // count, dq.shape[0]),
            *(call, self.d_output, self.lse, self.delta, d_selecting_query, dq, self.d_bias, self.how),
            BIAS=self.d_bias is not None,
            HEADS=count,
            SAME=same,
            BM=self.config.rows,
            BN=tile.keys,
            **tile.effort(),
        )


def order_of_keys(call: AttentionArguments, how: How, config: Config, dead: Tensor) -> Tensor | None:
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


OPERATOR = Operator(
    "triton",
    results=TritonResults,
    forward=forward,
    shapes=shapes,
    backward=backward,
    saved=("output", "lse", "block_f", "dead"),
    gradients=("query", "key", "value", "selection_query", "selection_key", "bias", "initial_f"),
)
