"""The compiled backend: `csrc/attention`, made an operator.

Forward and backward in tiles, several threads, linear memory but for F at the first row of each block of queries.
Columns that are dead for good are left out (see `csrc/attention/bounds.h`), so that time follows what is alive.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selattn.errors import SelattnError
from selattn.ops import transforms
from selattn.ops.precision import compute_dtype
from selattn.ops.request import Attention, Request
from selattn.ops.sequences import visible_pairs
from selattn.utils import native

DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}  # as csrc/attention/problem.h numbers them
BLOCK = 96  # queries whose F begins with a stored value; BLOCK in problem.h
LARGEST_HEAD = 1024  # MAX_SIZE in csrc/native.cpp


def unavailable() -> str | None:
    """Why this backend cannot run on this machine; None if it can."""
    return native.unavailable()


def refusal(request: Request) -> str | None:
    """Why this backend cannot do what is asked; None if it can."""
    r, gradient = request, _differentiated(request)
    reasons = {
        f"it runs on the CPU, not on {r.query.device.type}": r.query.device.type != "cpu",
        f"it takes fp32, fp64 and bf16, not {r.query.dtype}": r.query.dtype not in DTYPES,
        f"its heads have at most {LARGEST_HEAD} features": max(r.query.shape[3], r.value.shape[3]) > LARGEST_HEAD,
        "it counts tokens in floating point, in fp32 up to 2^24": r.key.shape[2] > 2**24
        and r.query.dtype != torch.float64,
        "it never holds the attention weights": r.wanted.weights,
        "it never holds F": r.wanted.f,
        "it has no dropout": r.rules.dropout_p > 0,
        "it has no additive bias": r.bias is not None,
        "it takes masks as sequences and windows only": r.mask is not None,
        "it has no sparse patterns": r.rules.pattern is not None,
        "it has one selection mask": r.masks > 1,
        "it has no separate bilinear form": r.selection_query is not None,
        "it has one order of eviction for all heads": r.until is not None and r.until.shape[1] > 1,
        "it has no gradient through an initial or final F": gradient and (r.wanted.final_f or r.initial_f is not None),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _differentiated(request: Request) -> bool:
    """Whether a backward pass can follow; inside of torch.func an input does not tell."""
    return (request.needs_grad or transforms.in_transform()) and torch.is_grad_enabled()


def attend(request: Request) -> Attention:
    """See `Request` and `Attention`."""
    r, selection = request, request.rules.selection
    heads = r.query.shape[1]
    settings = _Settings(
        scale=r.scale,
        softcap=r.rules.softcap or 0.0,
        selecting=-1 if selection is None else selection.heads[0],
        relu=selection is None or selection.relu,
        protect_first=selection is None or selection.protect_first,
        protect_self=selection is None or selection.protect_self,
        shift=selection is None or selection.shift,
        tau=r.rules.tau,
        window=r.rules.window or 0,
        tolerance=r.rules.tolerance,
        memory=r.wanted.memory,
        final_f=r.wanted.final_f,
        living=r.wanted.living,
        gradient=_differentiated(r),
    )
    assert settings.selecting < heads
    tensors = (r.query, r.key, r.value, r.strength, r.start, r.until, r.initial_f)
    output, _, memory, final_f, _, _, living = _run(*tensors, *settings)
    return Attention(
        output=output,
        memory=memory.unsqueeze(1) if r.wanted.memory else None,
        final_f=final_f.unsqueeze(1) if r.wanted.final_f else None,
        living=_share(living, r) if r.wanted.living else None,
    )


def _share(living: Tensor, r: Request) -> Tensor:
    """Of the visible pairs, those that were computed; 1 where there is nothing to see."""
    until = None if r.until is None else r.until[:, 0].to(torch.int64)
    pairs = visible_pairs(r.start, until, r.rules.window, r.query.shape[2], r.key.shape[2])
    return torch.where(pairs > 0, living.double() / pairs.clamp(min=1), 1.0)


class _Settings(NamedTuple):
    """All of a request that is not a tensor, in types that a torch operator takes."""

    scale: float
    softcap: float  # 0: none
    selecting: int  # -1: no selection
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


class _Found(NamedTuple):
    """What the forward pass gives; empty for what was not asked for."""

    output: Tensor  # [B, H, N, Dv]
    lse: Tensor  # [B, H, N]
    memory: Tensor  # [B, N]
    final_f: Tensor  # [B, M]
    block_f: Tensor  # [B, blocks * M] F at the first row of each block, for the backward pass
    dead: Tensor  # [B, M] the block from which a column is dead
    living: Tensor  # [B] pairs of a query and a living key


_INTS = ("B", "H", "G", "N", "M", "D", "Dv", "dtype", "threads")
_STRIDES = ("query_stride", "key_stride", "value_stride", "d_output_stride")
_SELECTION = ("selecting", "relu", "protect_first", "protect_self", "shift")
_RESULTS = ("output", "lse", "memory", "final_f", "block_f", "dead", "living")
_BACKWARD = ("d_output", "d_memory", "dq", "dk", "dv")
_TENSORS = "Tensor query, Tensor key, Tensor value, Tensor? strength, Tensor? start, Tensor? until, Tensor? initial_f"
_SETTINGS = """float scale, float softcap, int selecting, bool relu, bool protect_first, bool protect_self, bool shift,
    float tau, int window, float tolerance, bool memory, bool final_f, bool living, bool gradient"""
_N_TENSORS = _TENSORS.count("Tensor")


class _Problem(ctypes.Structure):
    """`struct Problem` of csrc/attention/problem.h. It keeps the tensors alive that it points to."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in _INTS),
        *((name, ctypes.c_int64 * 3) for name in _STRIDES),
        *((name, ctypes.c_void_p) for name in ("query", "key", "value")),
        *((name, ctypes.c_double) for name in ("scale", "softcap")),
        *((name, ctypes.c_int64) for name in _SELECTION),
        *((name, ctypes.c_double) for name in ("strength", "tau")),
        ("window", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("start", "until", "initial_f")),
        ("tolerance", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in (*_RESULTS, *_BACKWARD)),
    )

    def __init__(self, tensors: tuple[Any, ...], settings: _Settings) -> None:
        query, key, value, strength, start, until, initial_f = tensors
        super().__init__()
        self.held: list[Tensor] = []
        batch, self.B = query.shape[0], query.shape[0]
        self.H, self.N, self.D = query.shape[1:]
        self.G, self.M, self.Dv = value.shape[1:]
        self.dtype, self.threads = DTYPES[query.dtype], torch.get_num_threads()
        for name, x in (("query", query), ("key", key), ("value", value)):
            self.point(name, x if x.stride(3) == 1 else x.contiguous())
        for name in (*_SELECTION, "scale", "softcap", "tau", "window", "tolerance"):
            setattr(self, name, getattr(settings, name))
        self.strength = 1.0 if strength is None else float(strength)
        self.point("start", None if start is None else start.expand(batch, self.M).contiguous())
        self.point("until", None if until is None else until[:, 0].to(torch.int64).contiguous())
        self.point(
            "initial_f", None if initial_f is None else initial_f[:, 0].to(compute_dtype(query.dtype)).contiguous()
        )

    def point(self, name: str, x: Tensor | None) -> None:
        """Hand a tensor over; None, or an empty one, is a null pointer."""
        if x is None or x.numel() == 0:
            return
        self.held.append(x)
        setattr(self, name, x.data_ptr())
        if f"{name}_stride" in _STRIDES:
            setattr(self, f"{name}_stride", (ctypes.c_int64 * 3)(*x.stride()[:3]))

    def run(self, function: str) -> None:
        """Call the library."""
        library = native.library()
        assert library is not None
        if self.B == 0:
            return
        if getattr(library, function)(ctypes.byref(self)):
            raise SelattnError("attention needs more memory than there is: use a smaller batch or a shorter context")


def _empty(tensors: tuple[Any, ...], settings: _Settings) -> _Found:
    query, key, value = tensors[:3]
    exact = query.new_empty(0, dtype=compute_dtype(query.dtype))
    batch, heads, rows = query.shape[:3]
    keys, s = key.shape[2], settings
    # In one row: as a size of its own, the number of blocks would be a constant of a compiled graph where it is 1.
    of_blocks = (batch, -(-rows // BLOCK) * keys) if s.gradient and s.selecting >= 0 else 0
    return _Found(
        output=query.new_empty(batch, heads, rows, value.shape[3]),
        lse=exact.new_empty(batch, heads, rows),
        memory=exact.new_empty((batch, rows) if s.memory else 0),
        final_f=exact.new_empty((batch, keys) if s.final_f else 0),
        block_f=exact.new_empty(of_blocks),
        dead=exact.new_empty(batch, keys, dtype=torch.int32),
        living=exact.new_empty(batch if s.living else 0, dtype=torch.int64),
    )


@torch.library.custom_op(
    "selattn::cpu_forward",
    mutates_args=(),
    schema=f"({_TENSORS}, {_SETTINGS}) -> ({', '.join(['Tensor'] * len(_Found._fields))})",
)
def _forward(*args: Any) -> _Found:
    tensors, settings = args[:_N_TENSORS], _Settings(*args[_N_TENSORS:])
    problem, found = _Problem(tensors, settings), _empty(tensors, settings)
    for name, x in zip(_RESULTS, found, strict=True):
        problem.point(name, x)
    problem.run("selattn_forward")
    return found


@_forward.register_fake
def _(*args: Any) -> _Found:
    return _empty(args[:_N_TENSORS], _Settings(*args[_N_TENSORS:]))


@torch.library.custom_op(
    "selattn::cpu_backward",
    mutates_args=(),
    schema=f"""(Tensor output, Tensor lse, Tensor block_f, Tensor dead, Tensor d_output, Tensor? d_memory, {_TENSORS},
        {_SETTINGS}) -> (Tensor, Tensor, Tensor)""",
)
def _backward(
    output: Tensor, lse: Tensor, block_f: Tensor, dead: Tensor, d_output: Tensor, d_memory: Tensor | None, *args: Any
) -> tuple[Tensor, ...]:
    tensors = args[:_N_TENSORS]
    problem = _Problem(tensors, _Settings(*args[_N_TENSORS:]))
    d_output = d_output.to(output.dtype)
    problem.point("d_output", d_output if d_output.stride(3) == 1 else d_output.contiguous())
    problem.point("d_memory", None if d_memory is None else d_memory.to(lse.dtype).contiguous())
    for name, x in (("output", output), ("lse", lse), ("block_f", block_f), ("dead", dead)):
        problem.point(name, x)
    found = tuple(torch.zeros_like(x, dtype=lse.dtype, memory_format=torch.contiguous_format) for x in tensors[:3])
    for name, x in zip(("dq", "dk", "dv"), found, strict=True):
        problem.point(name, x)
    problem.run("selattn_backward")
    return tuple(x.to(output.dtype) for x in found)


@_backward.register_fake
def _(*args: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in args[6:9])


def _save(ctx: Any, inputs: tuple[Any, ...], output: _Found) -> None:
    ctx.set_materialize_grads(False)
    tensors, ctx.settings = inputs[:_N_TENSORS], inputs[_N_TENSORS:]
    ctx.given = [x is not None for x in tensors]
    found = _Found(*output)
    ctx.mark_non_differentiable(found.dead, found.living)
    kept = (found.output, found.lse, found.block_f, found.dead)
    ctx.save_for_backward(*kept, *(x for x in tensors if x is not None))


def _differentiate(ctx: Any, d_output: Any, d_lse: Any, d_memory: Any, *_: Any) -> tuple[Any, ...]:
    output, lse, block_f, dead, *saved = ctx.saved_tensors
    tensors = [saved.pop(0) if given else None for given in ctx.given]
    if d_output is None:
        d_output = torch.zeros_like(output)
    d_memory = d_memory if _Settings(*ctx.settings).memory else None
    found = _run_backward(output, lse, block_f, dead, d_output, d_memory, *tensors, *ctx.settings)
    needed = [g if need else None for g, need in zip(found, ctx.needs_input_grad, strict=False)]
    return (*needed, *(None,) * (len(tensors) + len(ctx.settings) - len(needed)))


def _refuse_second(ctx: Any, *gradients: Any) -> None:
    raise RuntimeError("selattn's cpu backend has no second derivative: use backend='reference' for double backward")


_run = transforms.Operator(_forward, _save, _differentiate)
_run_backward = transforms.Operator(_backward, transforms.save_nothing, _refuse_second)
