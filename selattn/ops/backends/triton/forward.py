"""The forward pass: which kernels, in which order."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from selattn.ops.backends.triton.arguments import Call, How
from selattn.ops.backends.triton.configs import Config, Tile
from selattn.ops.backends.triton.launch import launch, on
from selattn.ops.backends.triton.prepare import Prepared, Settings, Tensors, masks_of, prepare

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


def empty(tensors: Tensors, settings: Settings, rows: int, dies: bool) -> Found:
    """Tensors for it; `rows` in a block."""
    query, masks, s = tensors.query, masks_of(tensors, settings), settings
    batch, heads, count = query.shape[:3]
    keys, exact = tensors.key.shape[2], query.new_empty(0, dtype=torch.float32)
    return Found(
        output=query.new_empty(batch, heads, count, tensors.value.shape[3]),
        lse=exact.new_empty(batch, heads, count),
        memory=exact.new_empty((batch, masks, count) if s.memory else 0),
        final_f=exact.new_empty((batch, masks, keys) if s.final_f else 0),
        living=exact.new_empty(batch if s.living else 0, dtype=torch.float64),
        block_f=exact.new_empty((batch, masks, -(-count // rows), keys) if masks else 0),
        dead=exact.new_empty((batch, masks, keys) if dies else 0, dtype=torch.int32),
    )


def forward(tensors: Tensors, settings: Settings) -> Found:
    """Run it."""
    from selattn.ops.backends.triton.kernels.attend import attend

    with on(tensors.query.device):
        ready = prepare(tensors, settings)
        found = empty(tensors, settings, ready.config.rows, ready.how.dies)
        if tensors.query.shape[0] == 0:
            return found
        call = select(ready, found, tensors)
        call = with_lists(call, ready.how, ready.config, found.dead)
        tile = ready.config.attend
        count, same = heads_together(tile, call, ready.how)
        launch(
            attend,
            (blocks(call, ready.config), call.H // count, tensors.query.shape[0]),
            *(call, found.output, found.lse, found.memory, ready.how),
            HEADS=count,
            SAME=same,
            BM=ready.config.rows,
            BN=tile.keys,
            **effort(tile),
        )
        if settings.living:
            found.living.copy_(living_share(tensors, call, ready.config.rows, found.dead))
        return found


def select(ready: Prepared, found: Found, tensors: Tensors) -> Call:
    """F at the first row of each block, who is dead from there, and the final F; `found` is written to."""
    from selattn.ops.backends.triton.kernels.select import bounds
    from selattn.ops.backends.triton.kernels.select import select as run

    call, how, config = ready
    if not how.select:
        return call
    call = call._replace(block_f=found.block_f)
    batch, reach, own, lengths = tensors.query.shape[0], None, None, None
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
        lengths = torch.linalg.vector_norm(tensors.key, dim=-1, dtype=torch.float32).contiguous()
    tile, together = config.select, 1 << (call.H // call.S - 1).bit_length()
    launch(
        run,
        (-(-call.M // tile.keys), call.S, batch),
        *(call, reach, own, lengths, found.dead, found.final_f, how),
        HEADS=together,
        BM=config.rows,
        BN=tile.keys,
        **effort(tile),
    )
    return call


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
    """T."""
    return -(-call.N // config.rows)


def effort(tile: Tile) -> dict[str, Any]:
    """What a launch is told beside its arguments."""
    return {"num_warps": tile.warps, "num_stages": tile.stages}


def heads_together(tile: Tile, call: Call, how: How) -> tuple[int, bool]:
    """How many heads share F in one program, and whether they share keys and values, too."""
    follow = call.H // call.S if how.select else 1
    count = next(n for n in range(min(tile.heads, follow), 0, -1) if follow % n == 0)
    return count, (call.H // call.G) % count == 0


def living_share(tensors: Tensors, call: Call, block: int, dead: Tensor) -> Tensor:
    """[B] fp64: of the visible pairs, those that were computed, over all masks; 1 where there is nothing to see."""
    batch, keys, offset = tensors.query.shape[0], call.M, call.M - call.N
    device = tensors.query.device
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
