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

from selattn.ops import strips
from selattn.ops.request import Attention, Request
from selattn.ops.selection import accumulate, memory
from selattn.ops.tile import compute_dtype, seen_by_selection, selected, visible, whole


def unavailable() -> str | None:
    """Why this backend cannot run on this machine; None if it can."""
    return None


def refusal(request: Request) -> str | None:
    """Why this backend cannot do what is asked; None if it can."""
    if request.softcap is not None:
        return "PyTorch's kernel has no soft cap"
    if request.return_weights:
        return "PyTorch's kernel does not give its weights"
    return None


def attend(request: Request) -> Attention:
    """See `Request` and `Attention`."""
    if plain_causal(request):
        return Attention(_sdpa(request, None))
    seen = visible(request, whole(request))
    F, M, state, bias = None, None, None, request.bias
    if request.selection is not None:
        F, state = accumulate(selected(request, whole(request), seen), request.state, request.selection.shift)
        M = memory(F, seen_by_selection(request, seen), request.tau) if request.return_memory else None
        followed = F if request.masks == 1 else F.repeat_interleave(request.query.shape[1] // request.masks, 1)
        bias = -followed if bias is None else bias - followed
    if bias is None:
        bias = request.query.new_zeros((), dtype=compute_dtype(request.query.dtype))
    bias = bias.masked_fill(~seen, -torch.inf)
    return Attention(
        output=_sdpa(request, bias).masked_fill(~seen.any(-1, keepdim=True), 0.0),
        f=F if request.return_f else None,
        memory=M,
        state=state if request.return_state else None,
    )


def plain_causal(request: Request) -> bool:
    """Whether this is standard attention with nothing but causality, PyTorch's own fastest case."""
    r = request
    limits = (r.selection, r.start, r.until, r.window, r.pattern, r.mask, r.bias)
    return r.offset == 0 and all(limit is None for limit in limits)


def _sdpa(request: Request, bias: Tensor | None) -> Tensor:
    query, key, value = request.query, request.key, request.value
    shared = query.shape[1] != key.shape[1]
    if bias is not None and query.device.type == "cpu" and not request.dropout_p:
        return _biased(query, key, value, bias, request.scale)[0]
    return nnf.scaled_dot_product_attention(
        query,
        key,
        value,
        # Other devices' kernels want the bias in the inputs' dtype: F was summed in fp32 and is rounded once, here.
        attn_mask=None if bias is None else bias.to(query.dtype),
        dropout_p=request.dropout_p,
        is_causal=bias is None,
        scale=request.scale,
        enable_gqa=shared,
    )


@torch.library.custom_op(
    "selattn::biased_attention",
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, Tensor bias, float scale) -> (Tensor, Tensor)",
)
def _biased(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """softmax(scale Q K^T + bias) V with the flash kernel, and its log-sum-exp. The bias holds all masks, as -inf."""
    size, value_size = query.shape[-1], value.shape[-1]
    wide = max(size, value_size)  # the kernel wants one head size; zeros change nothing
    q, k, v = nnf.pad(query, (0, wide - size)), nnf.pad(key, (0, wide - size)), nnf.pad(value, (0, wide - value_size))
    causal = q.shape[-2] == k.shape[-2]  # lets the kernel skip what the bias masks anyway
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=bias, scale=scale
    )
    return output[..., :value_size].contiguous(), lse.contiguous()


@_biased.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    exact = compute_dtype(query.dtype)
    return query.new_empty(*query.shape[:3], value.shape[3]), query.new_empty(query.shape[:3], dtype=exact)


@torch.library.custom_op(
    "selattn::biased_attention_backward",
    mutates_args=(),
    schema="""(Tensor d_output, Tensor output, Tensor lse, Tensor query, Tensor key, Tensor value, Tensor bias,
        float scale, bool bias_grad) -> (Tensor, Tensor, Tensor, Tensor)""",
)
def _biased_backward(
    d_output: Tensor,
    output: Tensor,
    lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    scale: float,
    bias_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    request = Request(query, key, value, scale, bias=bias)
    found = strips.backward(request, 0, (output, lse), d_output, bias_grad=bias_grad)
    d_bias = output.new_empty(0) if found.bias is None else found.bias.to(bias.dtype)
    return found.query.to(query.dtype), found.key.to(key.dtype), found.value.to(value.dtype), d_bias


@_biased_backward.register_fake
def _(*args: Any) -> tuple[Tensor, ...]:
    output, (query, key, value, bias), bias_grad = args[1], args[3:7], args[8]
    d_bias = torch.empty_like(bias) if bias_grad else output.new_empty(0)
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), d_bias


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*output, *tensors)


def _differentiate(ctx: Any, d_output: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
    bias_grad = ctx.needs_input_grad[3]
    *gradients, d_bias = _biased_backward(d_output, *ctx.saved_tensors, ctx.scale, bias_grad)
    return (*gradients, d_bias if bias_grad else None, None)


def _refuse_second(ctx: Any, *gradients: Any) -> None:
    raise RuntimeError("selattn's sdpa backend has no second derivative: use backend='reference' for double backward")


_biased.register_autograd(_differentiate, setup_context=_save)
_biased_backward.register_autograd(_refuse_second)
