"""From a request's tensors and settings to what the kernels are given."""

from __future__ import annotations

from functools import lru_cache
from math import log2
from typing import NamedTuple

import torch
from torch import Tensor

from selattn.ops.backends.triton.arguments import Call, How, Matrix, Rows
from selattn.ops.backends.triton.configs import Config, choose

LOG2E = 1.4426950408889634


class Tensors(NamedTuple):
    """The tensors of a request, in the order of the operator's arguments. Shapes are in `selattn.ops.request`."""

    query: Tensor
    key: Tensor
    value: Tensor
    selection_query: Tensor | None
    selection_key: Tensor | None
    bias: Tensor | None
    initial_f: Tensor | None
    strength: Tensor | None
    start: Tensor | None
    until: Tensor | None
    mask: Tensor | None


class Settings(NamedTuple):
    """All of a request that is not a tensor, in types that a torch operator takes."""

    scale: float
    softcap: float  # 0: none
    heads: list[int]  # empty: no selection, or a separate form
    relu: bool
    protect_first: bool
    protect_self: bool
    shift: bool
    tau: float
    window: int  # 0: none
    tolerance: float
    memory: bool
    final_f: bool
    living: bool
    gradient: bool


class Prepared(NamedTuple):
    """A call that is ready, but for what the first kernels find out."""

    call: Call
    how: How
    config: Config


def masks_of(tensors: Tensors, settings: Settings) -> int:
    """S; 0 for standard attention."""
    return len(settings.heads) if tensors.selection_query is None else tensors.selection_query.shape[1]


def blocks_of(tensors: Tensors) -> int:
    """T."""
    return -(-tensors.query.shape[2] // config_of(tensors).rows)


def config_of(tensors: Tensors) -> Config:
    """The configuration of a call."""
    separate = 0 if tensors.selection_query is None else tensors.selection_query.shape[3]
    size = max(tensors.query.shape[3], tensors.value.shape[3], separate)
    return choose(tensors.query.device, tensors.query.dtype, size)


def may_leave_out(tensors: Tensors, settings: Settings) -> bool:
    """Whether columns can be dead for good: as in csrc/attention/bounds.h, and where no bias could bring them back."""
    s = settings
    selects = masks_of(tensors, s) > 0 and s.tolerance > 0 and s.relu and (s.shift or s.protect_self)
    return selects and not s.final_f and tensors.bias is None and tensors.mask is None


def prepare(tensors: Tensors, settings: Settings) -> Prepared:
    """Everything that needs no kernel of ours."""
    x, s = tensors, settings
    config, masks, dies = config_of(x), masks_of(x, s), may_leave_out(x, s)
    (heads, rows, size), (groups, keys) = x.query.shape[1:], x.key.shape[1:3]
    separate = x.selection_query is not None
    selecting_size = x.selection_query.shape[3] if x.selection_query is not None else size
    last = last_rows(x, s)
    gather = dies or x.until is not None
    # As PyTorch's own products: TF32 only for those who ask for it.
    precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    bounded = not gather and (x.start is not None or s.window > 0)
    call = Call(
        query=rows_of(x.query),
        key=rows_of(x.key),
        value=rows_of(x.value),
        selecting_query=rows_of(x.query if x.selection_query is None else x.selection_query),
        selecting_key=rows_of(x.key if x.selection_key is None else x.selection_key),
        bias=matrix_of(None if x.bias is None else x.bias.float()),
        mask=matrix_of(None if x.mask is None else x.mask.view(torch.uint8)),
        N=rows,
        M=keys,
        H=heads,
        G=groups,
        S=max(masks, 1),
        natural_scale=s.scale,
        scale=s.scale * LOG2E,
        selecting_scale=selecting_size**-0.5 * LOG2E,
        cap=s.softcap * LOG2E,
        tau=s.tau * LOG2E,
        least=max(log2(keys / s.tolerance), s.tau * LOG2E) if dies else 0.0,
        heads=_heads(tuple(range(masks) if separate else s.heads), x.query.device) if masks else None,
        strength=x.strength if x.strength is None else x.strength.to(x.query.device, torch.float32),
        rows=real_rows(x),
        first=None if x.start is None else x.start.expand(x.query.shape[0], -1).to(torch.int32).contiguous(),
        last=last,
        last_any=None if last is None else last.amax(1).contiguous(),
        last_selecting=last_selecting(x, s, last) if masks else None,
        initial_f=None if x.initial_f is None else x.initial_f.to(torch.float32).contiguous(),
        low=first_columns(x, s, config.rows) if bounded else None,
        block_f=None,
        columns=None,
        counts=None,
    )
    how = How(
        select=masks > 0,
        separate=separate,
        relu=s.relu,
        protect_first=s.protect_first,
        protect_self=s.protect_self,
        shift=int(s.shift),
        softcap=s.softcap > 0,
        strength=x.strength is not None,
        bias=x.bias is not None,
        mask=x.mask is not None,
        padded=call.rows is not None,
        first=call.first is not None,
        last=0 if last is None else 1 if last.shape[1] == 1 else 2,
        low=bounded,
        gather=gather,
        lists=max(masks, 1),
        dies=dies,
        leans_on_first=s.protect_first and s.window == 0 and x.until is None,
        initial_f=x.initial_f is not None,
        final_f=s.final_f,
        memory=s.memory and masks > 0,
        D=size,
        D_padded=padded(size),
        Dv=x.value.shape[3],
        Dv_padded=padded(x.value.shape[3]),
        Ds=selecting_size,
        Ds_padded=padded(selecting_size),
        precision=precision,
        sums=precision if x.query.dtype == torch.float32 else "tf32",
    )
    return Prepared(call, how, config)


def rows_of(x: Tensor) -> Rows:
    """A tensor [B, heads, rows, size] with its strides; copied where its rows are not dense."""
    x = x if x.stride(3) == 1 or x.shape[3] == 1 else x.contiguous()
    return Rows(x, *x.stride()[:3])


def matrix_of(x: Tensor | None) -> Matrix:
    """A tensor that broadcasts over [B, H, N, M], with strides of 0 where it does."""
    if x is None:
        return Matrix(None, 0, 0, 0, 0)
    return Matrix(x, *(0 if size == 1 else stride for size, stride in zip(x.shape, x.stride(), strict=True)))


def padded(size: int) -> int:
    """The size that a kernel computes with: a power of two that the matrix units can do."""
    return max(16, 1 << (size - 1).bit_length())


@lru_cache(maxsize=64)
def _heads(heads: tuple[int, ...], device: torch.device) -> Tensor:
    """Copied to the device once."""
    return torch.tensor(heads, dtype=torch.int32, device=device)


def real_rows(x: Tensors) -> Tensor | None:
    """[B, N] int32: each query's position among the keys, -1 for padding; None if there are no sequences."""
    if x.start is None:
        return None
    keys, rows = x.key.shape[2], x.query.shape[2]
    index = torch.arange(keys - rows, keys, device=x.start.device)
    real = torch.where(x.start[:, keys - rows :] <= index, index, -1)
    return real.expand(x.query.shape[0], -1).to(torch.int32).contiguous()


def ranks(x: Tensors) -> Tensor:
    """[B or 1, M] how many real tokens a row of the batch has up to each: what a window counts."""
    if x.start is None:
        return torch.arange(1, x.key.shape[2] + 1, device=x.key.device)[None]
    return (x.start < x.start.shape[-1]).long().cumsum(-1)


def last_rows(x: Tensors, s: Settings) -> Tensor | None:
    """[B, 1 or G, M] int32: one past the last row that sees a key, 0 for padding; None if all later rows see all.

    A sequence is a run of rows, so that documents, windows and evictions all end what a key is seen by, and nothing
    else is left to ask than this number and causality (and whether the row is padding).
    """
    if x.start is None and x.until is None and not s.window:
        return None
    batch, keys = x.key.shape[0], x.key.shape[2]
    index = torch.arange(keys, device=x.key.device)
    last = torch.full_like(index, keys).expand(batch, 1, keys)
    if s.window:
        rank = ranks(x)
        last = torch.minimum(last, torch.searchsorted(rank, rank + s.window).unsqueeze(1))
    if x.start is not None:
        start = x.start.expand(batch, keys)
        real = start <= index
        # The first real row whose sequence began after this key's did.
        ends = torch.searchsorted(torch.where(real, start, -1).cummax(-1).values, start.contiguous(), right=True)
        last = torch.minimum(last, ends.unsqueeze(1)).masked_fill(~real.unsqueeze(1), 0)
    if x.until is not None:
        last = torch.minimum(last, x.until.clamp(0, keys))
    return last.to(torch.int32).contiguous()


def last_selecting(x: Tensors, s: Settings, last: Tensor | None) -> Tensor | None:
    """[B, S, M] int32: one past the last row that may select a key; 0 for one that is protected. None as above."""
    if last is None:
        return None
    if last.shape[1] == 1 or x.selection_query is not None:  # a separate form may select what any head sees
        found = last.amax(1, keepdim=True).expand(-1, masks_of(x, s), -1)
    else:
        shared = x.query.shape[1] // x.key.shape[1]
        found = last[:, [head // shared for head in s.heads]]
    if s.protect_first:
        index = torch.arange(x.key.shape[2], device=last.device)
        first = index == (0 if x.start is None else x.start.unsqueeze(1))
        found = found.masked_fill(first, 0)
    return found.contiguous()


def first_columns(x: Tensors, s: Settings, block: int) -> Tensor:
    """[B, T] int32: the first key that some row of a block sees; M if none does."""
    keys, rows = x.key.shape[2], x.query.shape[2]
    index = torch.arange(keys - rows, keys, device=x.key.device)
    low = torch.zeros_like(index).expand(x.key.shape[0], -1)
    if s.window:
        rank = ranks(x)
        low = torch.searchsorted(rank, rank[:, keys - rows :].contiguous() - s.window + 1).expand(x.key.shape[0], -1)
    if x.start is not None:
        start = x.start[:, keys - rows :]
        low = torch.where(start <= index, torch.maximum(low, start), keys)
    low = torch.nn.functional.pad(low, (0, -rows % block), value=keys)
    return low.unflatten(-1, (-1, block)).amin(-1).to(torch.int32).contiguous()
