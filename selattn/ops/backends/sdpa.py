"""Selective attention by PyTorch's own kernel: F is materialised once for all heads, and goes in as a bias.

A bias that needs a gradient drops `scaled_dot_product_attention` from its flash kernel to plain matrices, forward and
backward. On the CPU the bias is therefore hidden from it: the forward pass is the flash kernel, and the backward pass,
which must form the sum over heads of dA anyway, comes from `strips`. The price is the private name of torch's CPU
kernel, which alone gives the log-sum-exp. F itself, its running sum and their gradients are ordinary PyTorch: N x N.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf

from selattn.ops import transforms
from selattn.ops.backends import strips
from selattn.ops.backends.seen import finite
from selattn.ops.backends.tile import seen_by_selection, selected, visible, whole
from selattn.ops.precision import compute_dtype
from selattn.ops.request import Attention, Request
from selattn.ops.rules import Rules
from selattn.ops.selection import accumulate, memory


def unavailable() -> str | None:
    """Why this backend cannot run on this machine; None if it can."""
    return None


def refusal(request: Request) -> str | None:
    """Why this backend cannot do what is asked; None if it can."""
    if request.rules.softcap is not None:
        return "PyTorch's kernel has no soft cap"
    if request.wanted.weights:
        return "PyTorch's kernel does not give its weights"
    return None


def attend(request: Request) -> Attention:
    """See `Request` and `Attention`."""
    if plain_causal(request):
        return Attention(_sdpa(request, None))
    seen = visible(request, whole(request))
    F, M, final_f, bias, left = None, None, None, request.bias, seen
    selection = request.rules.selection
    if selection is not None:
        F, final_f = accumulate(selected(request, whole(request), seen), request.initial_f, selection.shift)
        M = memory(F, seen_by_selection(request, seen), request.rules.tau) if request.wanted.memory else None
        followed = F if request.masks == 1 else F.repeat_interleave(request.query.shape[1] // request.masks, 1)
        # An F of infinity is no mask to the kernel, which would not look at the logit: infinity minus infinity is NaN.
        left = seen & (followed != torch.inf)
        followed = followed.clamp(max=torch.finfo(F.dtype).max)
        bias = -followed if bias is None else bias - followed
    if bias is None:
        bias = request.query.new_zeros((), dtype=compute_dtype(request.query.dtype))
    bias = bias.masked_fill(~seen, -torch.inf)
    output = _sdpa(request, bias).masked_fill(~left.any(-1, keepdim=True), torch.nan)
    return Attention(
        output=output.masked_fill(~seen.any(-1, keepdim=True), 0.0),
        f=F if request.wanted.f else None,
        memory=M,
        final_f=final_f if request.wanted.final_f else None,
    )


def plain_causal(request: Request) -> bool:
    """Whether this is standard attention with nothing but causality, PyTorch's own fastest case."""
    r = request
    limits = (r.rules.selection, r.rules.window, r.rules.pattern, r.start, r.until, r.mask, r.bias)
    return r.offset == 0 and all(limit is None for limit in limits)


def _sdpa(request: Request, bias: Tensor | None) -> Tensor:
    query, key, value = request.query, request.key, request.value
    if query.device.type in ("cpu", "meta") and not request.rules.dropout_p:
        return _flash(query, key, value, bias, request.scale)[0]
    query, scale = _with_positive_scale(query, request.scale)
    return nnf.scaled_dot_product_attention(
        query,
        key,
        value,
        # Other devices' kernels want the bias in the inputs' dtype: F was summed in fp32 and is rounded once, here.
        attn_mask=None if bias is None else bias.to(query.dtype),
        dropout_p=request.rules.dropout_p,
        is_causal=bias is None,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _with_positive_scale(query: Tensor, scale: float) -> tuple[Tensor, float]:
    """The same logits with a scale above 0. PyTorch's kernels look for the largest logit before they scale."""
    if scale > 0:
        return query, scale
    return (-query, -scale) if scale < 0 else (query * 0.0, 1.0)


def _for_kernel(*tensors: Tensor) -> list[Tensor]:
    """As the CPU's kernel takes them, without a look: of one head size (zeros change nothing), and with dense rows."""
    wide = max(x.shape[-1] for x in tensors)
    padded = (nnf.pad(x, (0, wide - x.shape[-1])) if x.shape[-1] < wide else x for x in tensors)
    return [x if x.stride(-1) == 1 else x.contiguous() for x in padded]


@torch.library.custom_op(
    "selattn::flash_attention",
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, Tensor? bias, float scale) -> (Tensor, Tensor)",
)
def _forward(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """softmax(scale Q K^T + bias) V with the flash kernel, and its log-sum-exp. The bias holds all masks, as -inf."""
    output, lse = _empty(query, key, value, bias, scale)
    if query.shape[0] == 0:
        return output, lse
    same = query.shape[-2] == key.shape[-2]  # lets the kernel skip what the bias masks anyway
    q, positive = _with_positive_scale(query, scale)
    q, k, v = _for_kernel(q, key, value)
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, same, attn_mask=None if bias is None else bias.contiguous(), scale=positive
    )
    output = output[..., : value.shape[-1]]
    if not finite(output) or _hides(
        output, lse, bias
    ):  # by what a row sees, or by what it does not see: `strips` knows
        output, lse, *_ = strips.forward(Request(query, key, value, Rules(scale=scale), bias=bias), 0)
    return output.contiguous(), lse.contiguous()


def _hides(output: Tensor, lse: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernel took a row whose logits are all -inf for one that sees nothing."""
    nothing = (lse == 0) & (output == 0).all(-1)
    if not bool(nothing.any()):
        return False
    return bias is None or bool((nothing & (bias != -torch.inf).any(-1)).any())


def _empty(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    exact = compute_dtype(query.dtype)
    return query.new_empty(*query.shape[:3], value.shape[3]), query.new_empty(query.shape[:3], dtype=exact)


_forward.register_fake(_empty)


@torch.library.custom_op(
    "selattn::flash_attention_backward",
    mutates_args=(),
    schema="""(Tensor d_output, Tensor output, Tensor lse, Tensor query, Tensor key, Tensor value, Tensor? bias,
        float scale, bool bias_grad) -> (Tensor, Tensor, Tensor, Tensor)""",
)
def _backward(
    d_output: Tensor,
    output: Tensor,
    lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    scale: float,
    bias_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    nothing = output.new_empty(0)
    if bias is None and scale > 0 and query.shape[0] > 0:  # standard attention: PyTorch's kernel has that, too
        gradient, o, q, k, v = _for_kernel(d_output.to(output.dtype), output, query, key, value)
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, q, k, v, o, lse, 0.0, True, scale=scale
        )
        cut = [x[..., : like.shape[-1]] for x, like in ((dq, query), (dk, key), (dv, value))]
        if finite(*cut):
            return cut[0].contiguous(), cut[1].contiguous(), cut[2].contiguous(), nothing
    request = Request(query, key, value, Rules(scale=scale), bias=bias)
    found = strips.backward(request, 0, (output, lse), d_output, bias_grad=bias_grad)
    d_bias = nothing if found.bias is None or bias is None else found.bias.to(bias.dtype)
    return found.query.to(query.dtype), found.key.to(key.dtype), found.value.to(value.dtype), d_bias


@_backward.register_fake
def _(*args: Any) -> tuple[Tensor, ...]:
    output, (query, key, value, bias), bias_grad = args[1], args[3:7], args[8]
    d_bias = bias.new_empty(bias.shape) if bias_grad else output.new_empty(0)
    return (*(x.new_empty(x.shape) for x in (query, key, value)), d_bias)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.has_bias = tensors[3] is not None
    ctx.save_for_backward(*output, *(x for x in tensors if x is not None))


def _differentiate(ctx: Any, d_output: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
    bias_grad = ctx.needs_input_grad[3]
    saved = ctx.saved_tensors if ctx.has_bias else (*ctx.saved_tensors, None)
    *gradients, d_bias = _flash_backward(d_output, *saved, ctx.scale, bias_grad)
    return (*gradients, d_bias if bias_grad else None, None)


def _refuse_second(ctx: Any, *gradients: Any) -> None:
    raise RuntimeError("selattn's sdpa backend has no second derivative: use backend='reference' for double backward")


_flash = transforms.Operator(_forward, _save, _differentiate)
_flash_backward = transforms.Operator(_backward, transforms.save_nothing, _refuse_second)
