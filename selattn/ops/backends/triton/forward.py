"""The forward pass: which kernels, in which order."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from selattn.ops.backends.triton.arguments import Call, How
from selattn.ops.backends.triton.configs import Config, Tile
from selattn.ops.backends.triton.launch import launch, on
from selattn.ops.backends.triton.prepare import Prepared, config_of, may_leave_out, prepare
from selattn.ops.request import Request

CHUNK = 1024  # keys that a program looks at in one go when it lists the living


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
