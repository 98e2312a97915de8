"""The passes, made an operator: torch sees one node for each direction, with gradients and shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selattn.ops import transforms
from selattn.ops.backends.triton import backward, forward
from selattn.ops.backends.triton.prepare import Settings, Tensors, config_of, may_leave_out
from selattn.ops.request import Attention, AuxOutput, Request

_TENSORS = """Tensor query, Tensor key, Tensor value, Tensor? selection_query, Tensor? selection_key, Tensor? bias,
    Tensor? initial_f, Tensor? strength, Tensor? start, Tensor? until, Tensor? mask"""
_SETTINGS = """float scale, float softcap, int[] heads, bool relu, bool protect_first, bool protect_self, bool shift,
    float tau, int window, float tolerance, bool memory, bool final_f, bool living, bool gradient"""
_N_TENSORS = len(Tensors._fields)
_DIFFERENTIABLE = len(backward.Gradients._fields)


def attend(request: Request) -> Attention:
    """See `Request` and `Attention`."""
    r = request
    output, _, memory, final_f, living, _, _ = _run(*tensors_of(r), *settings_of(r))
    aux = AuxOutput(
        memory=memory if r.wanted.memory else None,
        final_f=final_f if r.wanted.final_f else None,
        living=living if r.wanted.living else None,
    )
    return Attention(output, aux)


def tensors_of(r: Request) -> Tensors:
    """The tensors of a request."""
    return Tensors(*(getattr(r, name) for name in Tensors._fields))


def settings_of(r: Request) -> Settings:
    """All else."""
    from_head = r.rules.selection is not None and r.selection_query is None
    return Settings(
        scale=r.scale,
        softcap=r.rules.softcap or 0.0,
        heads=list(r.rules.selection.heads) if r.rules.selection is not None and from_head else [],
        relu=r.rules.selection is None or r.rules.selection.relu,
        protect_first=r.rules.selection is None or r.rules.selection.protect_first,
        protect_self=r.rules.selection is None or r.rules.selection.protect_self,
        shift=r.rules.selection is None or r.rules.selection.shift,
        tau=r.rules.tau,
        window=r.rules.window or 0,
        tolerance=r.rules.tolerance,
        memory=r.wanted.memory,
        final_f=r.wanted.final_f,
        living=r.wanted.living,
        gradient=(r.needs_grad or transforms.in_transform()) and torch.is_grad_enabled(),
    )


def _unpack(args: tuple[Any, ...]) -> tuple[Tensors, Settings]:
    return Tensors(*args[:_N_TENSORS]), Settings(*args[_N_TENSORS:])


@torch.library.custom_op(
    "selattn::triton_forward",
    mutates_args=(),
    schema=f"({_TENSORS}, {_SETTINGS}) -> ({', '.join(['Tensor'] * len(forward.Found._fields))})",
)
def _forward(*args: Any) -> forward.Found:
    return forward.forward(*_unpack(args))


@_forward.register_fake
def _(*args: Any) -> forward.Found:
    tensors, settings = _unpack(args)
    return forward.empty(tensors, settings, config_of(tensors).rows, may_leave_out(tensors, settings))


@torch.library.custom_op(
    "selattn::triton_backward",
    mutates_args=(),
    schema=f"""(Tensor output, Tensor lse, Tensor block_f, Tensor dead, Tensor d_output, Tensor? d_memory,
        Tensor? d_final_f, bool bias_grad, {_TENSORS}, {_SETTINGS}) -> ({", ".join(["Tensor"] * _DIFFERENTIABLE)})""",
)
def _backward(
    output: Tensor,
    lse: Tensor,
    block_f: Tensor,
    dead: Tensor,
    d_output: Tensor,
    d_memory: Tensor | None,
    d_final_f: Tensor | None,
    bias_grad: bool,
    *args: Any,
) -> tuple[Tensor, ...]:
    tensors, settings = _unpack(args)
    nothing = lse.new_empty(0)
    found = forward.Found(output, lse, nothing, nothing, nothing, block_f, dead)
    gradients = backward.backward(tensors, settings, found, d_output, d_memory, d_final_f, bias_grad)
    return tuple(output.new_empty(0) if x is None else x for x in gradients)


@_backward.register_fake
def _(*args: Any) -> tuple[Tensor, ...]:
    output, bias_grad, tensors = args[0], args[7], Tensors(*args[8 : 8 + _N_TENSORS])
    given: list[Tensor | None] = list(tensors[:_DIFFERENTIABLE])
    given[5] = tensors.bias if bias_grad else None
    return tuple(
        output.new_empty(0) if x is None else torch.empty_like(x, memory_format=torch.contiguous_format) for x in given
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: forward.Found) -> None:
    ctx.set_materialize_grads(False)
    tensors, ctx.settings = inputs[:_N_TENSORS], inputs[_N_TENSORS:]
    ctx.given = [x is not None for x in tensors]
    found = forward.Found(*output)
    ctx.mark_non_differentiable(found.living, found.dead)
    ctx.save_for_backward(found.output, found.lse, found.block_f, found.dead, *(x for x in tensors if x is not None))


def _differentiate(ctx: Any, d_output: Any, d_lse: Any, d_memory: Any, d_final_f: Any, *_: Any) -> tuple[Any, ...]:
    output, lse, block_f, dead, *saved = ctx.saved_tensors
    tensors = [saved.pop(0) if given else None for given in ctx.given]
    settings = Settings(*ctx.settings)
    if d_output is None:
        d_output = torch.zeros_like(output)
    d_memory, d_final_f = d_memory if settings.memory else None, d_final_f if settings.final_f else None
    needs = ctx.needs_input_grad[:_DIFFERENTIABLE]
    found = _run_backward(output, lse, block_f, dead, d_output, d_memory, d_final_f, needs[5], *tensors, *settings)
    gradients = [g if need else None for g, need in zip(found, needs, strict=True)]
    return (*gradients, *(None,) * (len(tensors) + len(settings) - len(gradients)))


def _refuse_second(ctx: Any, *gradients: Any) -> None:
    raise RuntimeError("selattn's triton backend has no second derivative: use backend='reference' for double backward")


_run = transforms.Operator(_forward, _save, _differentiate)
_run_backward = transforms.Operator(_backward, transforms.save_nothing, _refuse_second)
