"""Selective attention in tiles with PyTorch alone, in linear memory: `strips`, made an operator.

It is registered with torch, so that a compiled graph sees one node for each direction, whatever the length.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from selattn.ops import transforms
from selattn.ops.backends import strips
from selattn.ops.patterns import decode_pattern, encode_pattern
from selattn.ops.precision import compute_dtype
from selattn.ops.request import Attention, AuxRequest, Request
from selattn.ops.rules import Rules
from selattn.ops.selection import Selection


def unavailable() -> str | None:
    """Why this backend cannot run on this machine; None if it can."""
    return None


def refusal(request: Request) -> str | None:
    """Why this backend cannot do what is asked; None if it can."""
    if request.wanted.weights:
        return "it never holds the attention weights of more than one strip"
    return None


def attend(request: Request) -> Attention:
    """See `Request` and `Attention`."""
    # The seed is drawn here, outside of the operator, so that checkpointing and torch.manual_seed govern it.
    seed = torch.randint(1 << 31, (), dtype=torch.int64) if request.rules.dropout_p else None
    output, _, f, memory, final_f = _run(*_tensors(request), seed, *_settings(request))
    return Attention(
        output=output,
        f=f if request.wanted.f else None,
        memory=memory if request.wanted.memory else None,
        final_f=final_f if request.wanted.final_f else None,
    )


class _Settings(NamedTuple):
    """All of a request that is not a tensor, in types that a torch operator takes."""

    scale: float
    window: int | None
    pattern: list[int]
    softcap: float | None
    dropout_p: float
    heads: list[int]  # empty: no selection, or a separate form
    relu: bool
    protect_first: bool
    protect_self: bool
    shift: bool
    tau: float
    return_f: bool
    return_memory: bool


def _settings(request: Request) -> _Settings:
    rules = request.rules
    chosen = rules.selection or Selection()
    from_head = rules.selection is not None and request.selection_query is None
    return _Settings(
        request.scale,
        rules.window,
        encode_pattern(rules.pattern),
        rules.softcap,
        rules.dropout_p,
        list(chosen.heads) if from_head else [],
        chosen.relu,
        chosen.protect_first,
        chosen.protect_self,
        chosen.shift,
        rules.tau,
        request.wanted.f,
        request.wanted.memory,
    )


def _tensors(request: Request) -> tuple[Tensor | None, ...]:
    """In the order of the operator's arguments."""
    r = request
    return (
        r.query,
        r.key,
        r.value,
        r.selection_query,
        r.selection_key,
        r.bias,
        r.initial_f,
        r.strength,
        r.start,
        r.until,
        r.mask,
    )


def _request(tensors: tuple[Any, ...], settings: _Settings) -> Request:
    """The inverse of `_tensors` and `_settings`."""
    query, key, value, selection_query, selection_key, bias, initial_f, strength, start, until, mask = tensors
    s = settings
    selection = None
    if s.heads or selection_query is not None:
        selection = Selection(tuple(s.heads) or 0, s.relu, s.protect_first, s.protect_self, s.shift)
    return Request(
        query,
        key,
        value,
        Rules(
            selection=selection,
            strength=1.0 if strength is None else strength,
            window=s.window,
            pattern=decode_pattern(s.pattern),
            scale=s.scale,
            softcap=s.softcap,
            dropout_p=s.dropout_p,
            tau=s.tau,
        ),
        AuxRequest(f=s.return_f, memory=s.return_memory),
        start=start,
        until=until,
        mask=mask,
        bias=bias,
        selection_query=selection_query,
        selection_key=selection_key,
        initial_f=initial_f,
    )


_TENSORS = """Tensor query, Tensor key, Tensor value, Tensor? selection_query, Tensor? selection_key, Tensor? bias,
    Tensor? initial_f, Tensor? strength, Tensor? start, Tensor? until, Tensor? mask, Tensor? seed"""
_SETTINGS = """float scale, int? window, int[] pattern, float? softcap, float dropout_p, int[] heads, bool relu,
    bool protect_first, bool protect_self, bool shift, float tau, bool return_f, bool return_memory"""
_N_TENSORS = _TENSORS.count("Tensor")


def _unpack(args: tuple[Any, ...]) -> tuple[Request, int]:
    """The request, and the seed of its dropout, from the operator's arguments."""
    *tensors, seed = args[:_N_TENSORS]
    return _request(tuple(tensors), _Settings(*args[_N_TENSORS:])), 0 if seed is None else int(seed)


@torch.library.custom_op(
    "selattn::chunked_forward",
    mutates_args=(),
    schema=f"({_TENSORS}, {_SETTINGS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _forward(*args: Any) -> strips.Forward:
    request, seed = _unpack(args)
    return strips.forward(request, seed)


@_forward.register_fake
def _(*args: Any) -> strips.Forward:
    request = _request(args[: _N_TENSORS - 1], _Settings(*args[_N_TENSORS:]))
    query, keys, masks = request.query, request.key.shape[2], request.masks
    batch, heads, rows = query.shape[:3]
    exact = query.new_empty(0, dtype=compute_dtype(query.dtype))
    return strips.Forward(
        output=query.new_empty(batch, heads, rows, request.value.shape[3]),
        lse=exact.new_empty(batch, heads, rows),
        f=exact.new_empty(batch, masks, rows, keys) if request.wanted.f else exact,
        memory=exact.new_empty(batch, masks, rows) if request.wanted.memory else exact.new_empty(0),
        final_f=exact.new_empty(batch, masks, keys),
    )


@torch.library.custom_op(
    "selattn::chunked_backward",
    mutates_args=(),
    schema=f"""(Tensor output, Tensor lse, Tensor d_output, Tensor? d_f, Tensor? d_memory, Tensor? d_final_f,
        bool bias_grad, {_TENSORS}, {_SETTINGS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)""",
)
def _backward(
    output: Tensor,
    lse: Tensor,
    d_output: Tensor,
    d_f: Tensor | None,
    d_memory: Tensor | None,
    d_final_f: Tensor | None,
    bias_grad: bool,
    *args: Any,
) -> tuple[Tensor, ...]:
    request, seed = _unpack(args)
    found = strips.backward(request, seed, (output, lse), d_output, d_f, d_memory, d_final_f, bias_grad)
    # A gradient has the dtype of its input; what has none is empty, as an operator returns tensors only.
    return tuple(
        output.new_empty(0) if gradient is None else gradient.to(getattr(request, name).dtype)
        for name, gradient in found._asdict().items()
    )


@_backward.register_fake
def _(*args: Any) -> tuple[Tensor, ...]:
    bias_grad, rest = args[6], args[7:]
    request = _request(rest[: _N_TENSORS - 1], _Settings(*rest[_N_TENSORS:]))
    given = [getattr(request, name) for name in strips.Gradients._fields]
    given[5] = given[5] if bias_grad else None
    return tuple(args[0].new_empty(0) if x is None else x.new_empty(x.shape) for x in given)


def _save(ctx: Any, inputs: tuple[Any, ...], output: strips.Forward) -> None:
    ctx.set_materialize_grads(False)
    tensors, ctx.settings = inputs[:_N_TENSORS], inputs[_N_TENSORS:]
    ctx.given = [x is not None for x in tensors]
    ctx.save_for_backward(*output[:2], *(x for x in tensors if x is not None))


def _differentiate(ctx: Any, d_output: Any, d_lse: Any, d_f: Any, d_memory: Any, d_final_f: Any) -> tuple[Any, ...]:
    output, lse, *saved = ctx.saved_tensors
    tensors = [saved.pop(0) if given else None for given in ctx.given]
    if d_output is None:
        d_output = torch.zeros_like(output)
    *_, return_f, return_memory = ctx.settings
    d_f, d_memory = d_f if return_f else None, d_memory if return_memory else None
    needs = ctx.needs_input_grad[: len(strips.Gradients._fields)]
    found = _run_backward(output, lse, d_output, d_f, d_memory, d_final_f, needs[5], *tensors, *ctx.settings)
    gradients = [g if need else None for g, need in zip(found, needs, strict=True)]
    return (*gradients, *(None,) * (len(tensors) + len(ctx.settings) - len(gradients)))


def _refuse_second(ctx: Any, *gradients: Any) -> None:
    raise RuntimeError(
        "selattn's chunked backend has no second derivative: use backend='reference' for double backward"
    )


_run = transforms.Operator(_forward, _save, _differentiate)
_run_backward = transforms.Operator(_backward, transforms.save_nothing, _refuse_second)
