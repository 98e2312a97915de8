"""From a request to what the kernels are given, and how they are started.

Kernels take `AttentionArguments`, one tuple of tensors and numbers, and `How`, what is known when they compile.
Shapes as in `selattn.ops.request`: B batch, H query heads, G key-value heads, N queries (the last N of M keys),
S masks, T blocks of BM rows.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from math import log2
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selattn.ops import sequences
from selattn.ops.backends.triton.configs import Config, choose
from selattn.ops.request import Request
from selattn.ops.rules import Rules
from selattn.ops.selection import Selection

LOG2E = 1.4426950408889634

# A product and a sum in one rounding: what Triton does by itself up to 3.9, and is told from then on.
ALWAYS = {"enable_fp_fusion": True}

Runner = Callable[[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]], None]


def _run(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    kernel[grid](*arguments, **options)


_runner: Runner = _run


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Run `kernel` for each point of the grid; nothing where that is empty."""
    if all(grid):
        _runner(kernel, grid, arguments, {**ALWAYS, **options})


@contextmanager
def instead(runner: Runner) -> Iterator[None]:
    """Within it, `runner` is called in place of a launch."""
    global _runner
    before, _runner = _runner, runner
    try:
        yield
    finally:
        _runner = before


def on(device: torch.device) -> Any:
    """A context in which kernels go to that device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


# The switches of `Selection` as kernels are given them: 1 or 0 each, in one bundle, whatever they are.
Switches = namedtuple("Switches", tuple(Selection().switches))  # type: ignore[misc]


def switches_of(selection: Selection) -> Switches:
    """The bundle for one call. The heads are no part of it: they do not decide the code of a kernel."""
    return Switches(**{name: int(on) for name, on in selection.switches.items()})


class Rows(NamedTuple):
    """A tensor [B, heads, rows, size] whose rows are dense, with its strides."""

    data: Tensor | None
    batch: int
    head: int
    row: int


class Matrix(NamedTuple):
    """A tensor that broadcasts over [B, H, N, M], with its strides: 0 where it has size 1."""

    data: Tensor | None
    batch: int
    head: int
    row: int
    column: int


class AttentionArguments(NamedTuple):
    """One call of attention. Tensors that the call does not need are None; `How` says which."""

    query: Rows
    key: Rows
    value: Rows
    selecting_query: Rows  # the queries, or those of the separate form
    selecting_key: Rows
    bias: Matrix  # fp32
    mask: Matrix  # bool, as bytes
    selecting_mask: Matrix  # the same for a separate form: what mask and bias leave to any head
    N: int
    M: int
    H: int
    G: int
    S: int  # 1 in standard attention, too
    natural_scale: float  # the scale itself; those below are in base 2
    scale: float
    selecting_scale: float
    cap: float
    tau: float
    least: float  # a column dies with F of at least this much
    heads: Tensor | None  # [S] int32, the head of `selecting_query` for each mask
    strength: Tensor | None  # 0-d fp32
    rows: Tensor | None  # [B, N] int32, a row's position; -1 for padding
    first: Tensor | None  # [B, M] int32, where the sequence of a token begins
    last: Tensor | None  # [B, 1 or G, M] int32, one past the last row that sees a key; 0 for padding
    last_any: Tensor | None  # [B, M] the largest of them
    last_form: Tensor | None  # [B, S, M] the largest of those of the heads of each mask, for a separate form
    last_selecting: Tensor | None  # [B, S, M] one past the last row that may select a key; 0 if it is protected
    initial_f: Tensor | None  # [B, S, M] fp32, F before the first row
    low: Tensor | None  # [B, T] int32, the first key that some row of a block sees
    block_f: Tensor | None  # [B, S, T, M] fp32, F at the first row of each block
    columns: Tensor | None  # [B, lists, T, M] int32, the keys of each block, in order
    counts: Tensor | None  # [B, lists, T] int32, how many they are


class How(NamedTuple):
    """What decides the code of a kernel. First what all kernels know, then what some do."""

    select: bool  # else standard attention: F = 0
    separate: bool
    switches: Switches  # of selection
    softcap: bool
    strength: bool
    bias: bool
    window: bool
    precision: str  # of products in fp32
    D: int
    D_padded: int
    Dv: int
    Dv_padded: int
    Ds: int  # of the selecting head
    Ds_padded: int
    # Attention.
    sums: str = ""  # of products with dS
    mask: bool = False
    selecting_mask: bool = False
    padded: bool = False  # some rows are padding: see `rows` above
    first: bool = False  # `first` above is given; else every sequence begins with key 0
    last: int = 0  # 0: rows see all keys before them; 1: see `last` above; 2: that differs between key-value heads
    low: bool = False
    gather: bool = False  # the keys of a block are listed, else they are neighbours
    lists: int = 1  # lists for each row of the batch: S, or 1 in standard attention
    dies: bool = False  # columns may be dead
    leans_on_first: bool = False  # the bound for that may use the first token
    initial_f: bool = False
    final_f: bool = False
    memory: bool = False
    # Decoding and the eviction order.
    policy: int = 0
    some: bool = False  # some tokens are padding
    rows: bool = False  # sequence b is in row rows[b]
    evicts: bool = False  # there is a budget


def how_of(rules: Rules, form: Tensor | None, biased: bool, size: int, value_size: int, selects: bool = True) -> How:
    """What follows from the rules, the query of a separate form and the sizes of heads. `selects`: F is needed."""
    form_size = size if form is None else form.shape[3]
    return How(
        select=selects and rules.masks(form) > 0,
        separate=form is not None,
        switches=switches_of(rules.selection or Selection()),
        softcap=rules.softcap is not None,
        strength=isinstance(rules.strength, Tensor) or rules.strength != 1.0,
        bias=biased,
        window=rules.window is not None,
        precision="ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",  # as PyTorch's own
        D=size,
        D_padded=padded(size),
        Dv=value_size,
        Dv_padded=padded(value_size),
        Ds=form_size,
        Ds_padded=padded(form_size),
    )


def config_of(r: Request) -> Config:
    """The configuration of a call."""
    separate = 0 if r.selection_query is None else r.selection_query.shape[3]
    config = choose(r.query.device, r.query.dtype, max(r.query.shape[3], r.value.shape[3], separate))
    return config if r.bias is None and r.mask is None else config.with_matrices()


def may_leave_out(r: Request) -> bool:
    """Whether columns can be dead for good: as in csrc/attention/bounds.h, and where no bias could bring them back."""
    selection = r.rules.selection
    if selection is None or not selection.relu or not (selection.shift or selection.protect_self):
        return False
    return r.rules.tolerance > 0 and not r.wanted.final_f and r.bias is None and r.mask is None


def prepare(r: Request) -> tuple[AttentionArguments, How, Config]:
    """Everything that PyTorch's own operators can do."""
    config, masks, dies = config_of(r), r.masks, may_leave_out(r)
    (heads, rows, size), (groups, keys) = r.query.shape[1:], r.key.shape[1:3]
    separate = r.selection_query is not None
    selection, softcap, window, tau = r.rules.selection or Selection(), r.rules.softcap, r.rules.window, r.rules.tau
    strength, last, any_head = r.strength, last_rows(r), shown_to_any(r)
    gather = dies or r.until is not None
    bounded = not gather and (r.start is not None or window is not None)
    call = AttentionArguments(
        query=rows_of(r.query),
        key=rows_of(r.key),
        value=rows_of(r.value),
        selecting_query=rows_of(r.query if r.selection_query is None else r.selection_query),
        selecting_key=rows_of(r.key if r.selection_key is None else r.selection_key),
        bias=matrix_of(None if r.bias is None else r.bias.float()),
        mask=matrix_of(None if r.mask is None else r.mask.view(torch.uint8)),
        selecting_mask=matrix_of(None if any_head is None else any_head.view(torch.uint8)),
        N=rows,
        M=keys,
        H=heads,
        G=groups,
        S=max(masks, 1),
        natural_scale=r.scale,
        scale=r.scale * LOG2E,
        selecting_scale=(size if r.selection_query is None else r.selection_query.shape[3]) ** -0.5 * LOG2E,
        cap=(softcap or 0.0) * LOG2E,
        tau=tau * LOG2E,
        least=max(log2(keys / r.rules.tolerance), tau * LOG2E) if dies else 0.0,
        heads=selecting_heads(selection, masks, separate, r.query.device),
        strength=None if strength is None else strength.to(torch.float32),
        rows=real_rows(r),
        first=None if r.start is None else r.start.expand(r.query.shape[0], -1).to(torch.int32).contiguous(),
        last=last,
        last_any=None if last is None else last.amax(1).contiguous(),
        last_form=last_form(r, last) if separate else None,
        last_selecting=last_selecting(r, last) if masks else None,
        initial_f=None if r.initial_f is None else r.initial_f.to(torch.float32).contiguous(),
        low=first_columns(r, config.rows) if bounded else None,
        block_f=None,
        columns=None,
        counts=None,
    )
    how = how_of(r.rules, r.selection_query, r.bias is not None, size, r.value.shape[3])
    how = how._replace(
        sums=how.precision if r.query.dtype == torch.float32 else "tf32",
        mask=r.mask is not None,
        selecting_mask=any_head is not None,
        padded=call.rows is not None,
        first=call.first is not None,
        last=0 if last is None else 1 if last.shape[1] == 1 else 2,
        low=bounded,
        gather=gather,
        lists=max(masks, 1),
        dies=dies,
        leans_on_first=selection.protect_first and window is None and r.until is None,
        initial_f=r.initial_f is not None,
        final_f=r.wanted.final_f,
        memory=r.wanted.memory and masks > 0,
    )
    return call, how, config


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


def selecting_heads(selection: Selection, masks: int, separate: bool, device: torch.device) -> Tensor | None:
    """[S] int32: for each mask the head that selects, among the queries or those of a separate form."""
    return heads_on(tuple(range(masks)) if separate else selection.heads, device) if masks else None


@lru_cache(maxsize=64)
def heads_on(heads: tuple[int, ...], device: torch.device) -> Tensor:
    """Copied to the device once."""
    return torch.tensor(heads, dtype=torch.int32, device=device)


def real_rows(r: Request) -> Tensor | None:
    """[B, N] int32: each query's position among the keys, -1 for padding; None if there are no sequences."""
    if r.start is None:
        return None
    keys, rows = r.key.shape[2], r.query.shape[2]
    index = torch.arange(keys - rows, keys, device=r.start.device)
    real = torch.where(r.start[:, keys - rows :] <= index, index, -1)
    return real.expand(r.query.shape[0], -1).to(torch.int32).contiguous()


def last_rows(r: Request) -> Tensor | None:
    """[B, 1 or G, M] int32: one past the last row that sees a key, 0 for padding; None if all later rows see all."""
    if r.start is None and r.until is None and r.rules.window is None:
        return None
    batch, keys = r.key.shape[0], r.key.shape[2]
    start = torch.zeros(1, keys, dtype=torch.int64, device=r.key.device) if r.start is None else r.start
    last = sequences.last_rows(start, r.rules.window).masked_fill(start >= keys, 0).expand(batch, keys).unsqueeze(1)
    if r.until is not None:
        last = torch.minimum(last, r.until.clamp(0, keys))
    return last.to(torch.int32).contiguous()


def last_form(r: Request, last: Tensor | None) -> Tensor | None:
    """[B, S, M] int32: one past the last row that sees a key in some head of each mask. None like `last`."""
    if last is None or last.shape[1] == 1:
        return None if last is None else last.expand(-1, r.masks, -1).contiguous()
    shared = r.query.shape[1] // r.key.shape[1]
    return last.repeat_interleave(shared, 1).unflatten(1, (r.masks, -1)).amax(2).contiguous()


def last_selecting(r: Request, last: Tensor | None) -> Tensor | None:
    """[B, S, M] int32: one past the last row that may select a key; 0 for one that is protected. None like `last`."""
    if last is None:
        return None
    assert r.rules.selection is not None
    of_form = last_form(r, last) if r.selection_query is not None else None
    if of_form is not None:  # a separate form may select what any head that follows it sees
        last = of_form
    elif last.shape[1] == 1:
        last = last.expand(-1, r.masks, -1)
    else:
        shared = r.query.shape[1] // r.key.shape[1]
        last = last[:, [head // shared for head in r.rules.selection.heads]]
    if r.rules.selection.protect_first:
        index = torch.arange(r.key.shape[2], device=last.device)
        first = index == (0 if r.start is None else r.start.unsqueeze(1))
        last = last.masked_fill(first, 0)
    return last.contiguous()


def shown_to_any(r: Request) -> Tensor | None:
    """[B or 1, S or 1, N or 1, M or 1] bool: what mask and bias leave to some head of a separate form; None if all."""
    if r.selection_query is None or (r.mask is None and r.bias is None):
        return None
    shown = torch.ones((), dtype=torch.bool, device=r.query.device) if r.mask is None else r.mask
    if r.bias is not None:
        shown = shown & (r.bias != -torch.inf)
    if r.until is not None and r.until.shape[1] > 1 and shown.shape[1] > 1:
        # A head that is shown a key may be one that has evicted it.
        rows = torch.arange(r.offset, r.key.shape[2], device=r.query.device)[:, None]
        kept = rows < r.until.unsqueeze(-2)  # [B, G, N, M]
        shown = shown & kept.repeat_interleave(r.query.shape[1] // r.key.shape[1], 1)
    return shown if shown.shape[1] == 1 else shown.unflatten(1, (r.masks, -1)).any(2)


def first_columns(r: Request, block: int) -> Tensor:
    """[B, T] int32: the first key that some row of a block sees; M if none does."""
    keys, rows = r.key.shape[2], r.query.shape[2]
    index = torch.arange(keys - rows, keys, device=r.key.device)
    low = torch.zeros_like(index).expand(r.key.shape[0], -1)
    if r.rules.window is not None:
        rank = r.ranks()
        low = torch.searchsorted(rank, rank[:, keys - rows :].contiguous() - r.rules.window + 1).expand(
            r.key.shape[0], -1
        )
    if r.start is not None:
        start = r.start[:, keys - rows :]
        low = torch.where(start <= index, torch.maximum(low, start), keys)
    low = torch.nn.functional.pad(low, (0, -rows % block), value=keys)
    return low.unflatten(-1, (-1, block)).amin(-1).to(torch.int32).contiguous()
