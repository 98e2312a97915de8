"""Selective attention by PyTorch's own kernel: F is materialised once for all heads, and goes in as a bias.

A bias that needs a gradient drops `scaled_dot_product_attention` from its flash kernel to plain matrices, forward and
backward. On the CPU the bias is therefore hidden from it: the forward pass is the flash kernel, and the backward pass,
which must form the sum over heads of dA anyway, comes from `strips`. The price is the private name of torch's CPU
kernel, which alone gives the log-sum-exp. F itself, its running sum and their gradients are ordinary PyTorch: N x N.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as nnf

from selattn.ops.backends import strips
from selattn.ops.backends.base import Backend
from selattn.ops.backends.seen import finite
from selattn.ops.backends.tile import seen_by_selection, selected, visible, whole
from selattn.ops.operator import Came, Kernel, Operator, Saved
from selattn.ops.precision import compute_dtype
from selattn.ops.request import Attention, AuxOutput, Request
from selattn.ops.rules import Rules
from selattn.ops.selection import accumulate, memory


class Sdpa(Backend):
    """F as a bias of PyTorch's own kernel."""

    name = "sdpa"
    plain = False

    def refusal(self, request: Request) -> str | None:
        if request.rules.softcap is not None:
            return "PyTorch's kernel has no soft cap"
        if request.wanted.weights:
            return "PyTorch's kernel does not give its weights"
        return None

    def attend(self, request: Request) -> Attention:
        if plain_causal(request):
            return Attention(_sdpa(request, None))
        seen = visible(request, whole(request))
        F, M, final_f, bias, left = None, None, None, request.bias, seen
        selection, masks = request.rules.selection, request.masks
        if selection is not None:
            F, final_f = accumulate(selected(request, whole(request), seen), request.initial_f, selection.shift)
            M = memory(F, seen_by_selection(request, seen), request.rules.tau) if request.wanted.memory else None
            followed = F if masks == 1 else F.repeat_interleave(request.query.shape[1] // masks, 1)
            # An F of infinity is no mask to the kernel, which would not look at the logit: infinity - infinity is NaN.
            left = seen & (followed != torch.inf)
            followed = followed.clamp(max=torch.finfo(F.dtype).max)
            bias = -followed if bias is None else bias - followed
        if bias is None:
            bias = request.query.new_zeros((), dtype=compute_dtype(request.query.dtype))
        bias = bias.masked_fill(~seen, -torch.inf)
        output = _sdpa(request, bias).masked_fill(~left.any(-1, keepdim=True), torch.nan)
        aux = AuxOutput(F if request.wanted.f else None, M, final_f if request.wanted.final_f else None)
        return Attention(output.masked_fill(~seen.any(-1, keepdim=True), 0.0), aux)


def plain_causal(request: Request) -> bool:
    """Whether this is standard attention with nothing but causality, PyTorch's own fastest case."""
    r, rules = request, request.rules
    if rules.selection is not None or rules.window is not None or rules.pattern is not None or r.offset != 0:
        return False
    return r.start is None and r.until is None and r.mask is None and r.bias is None


def _sdpa(request: Request, bias: Tensor | None) -> Tensor:
    query, key, value = request.query, request.key, request.value
    if query.device.type in ("cpu", "meta") and not request.rules.dropout_p:
        return FLASH(Flash(query, key, value, bias, request.scale)).output
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
    wide = max([x.shape[-1] for x in tensors])
    padded = [nnf.pad(x, (0, wide - x.shape[-1])) if x.shape[-1] < wide else x for x in tensors]
    return [x if x.stride(-1) == 1 else x.contiguous() for x in padded]


class Flash(NamedTuple):
    """softmax(scale Q K^T + bias) V. The bias holds all masks, as -inf; None is causality alone."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    scale: float

    @property
    def request(self) -> Request:
        """The same for `strips`."""
        return Request(self.query, self.key, self.value, Rules(scale=self.scale), bias=self.bias)


class Results(NamedTuple):
    """What the flash kernel gives."""

    output: Tensor  # [B, H, N, Dv]
    lse: Tensor  # [B, H, N]


def _forward(r: Flash) -> Results:
    """Output and log-sum-exp by PyTorch's flash kernel."""
    if r.query.shape[0] == 0:
        return _shapes(r)
    same = r.query.shape[-2] == r.key.shape[-2]  # lets the kernel skip what the bias masks anyway
    q, positive = _with_positive_scale(r.query, r.scale)
    q, k, v = _for_kernel(q, r.key, r.value)
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, same, attn_mask=None if r.bias is None else r.bias.contiguous(), scale=positive
    )
    output = output[..., : r.value.shape[-1]]
    # By what a row sees, or by what it does not see: `strips` knows.
    if not finite(output) or _hides(output, lse, r.bias):
        output, lse, *_ = strips.forward(r.request, 0)
    return Results(output.contiguous(), lse.contiguous())


def _hides(output: Tensor, lse: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernel took a row whose logits are all -inf for one that sees nothing."""
    nothing = (lse == 0) & (output == 0).all(-1)
    if not bool(nothing.any()):
        return False
    return bias is None or bool((nothing & (bias != -torch.inf).any(-1)).any())


def _shapes(r: Flash) -> Results:
    output = r.query.new_empty(*r.query.shape[:3], r.value.shape[3])
    return Results(output, r.query.new_empty(r.query.shape[:3], dtype=compute_dtype(r.query.dtype)))


def _backward(r: Flash, saved: Saved, came: Came, needed: frozenset[str]) -> dict[str, Tensor | None]:
    output, lse = saved["output"], saved["lse"]
    d_output = torch.zeros_like(output) if came["output"] is None else came["output"]
    if r.bias is None and r.scale > 0 and r.query.shape[0] > 0:  # standard attention: PyTorch's kernel has that, too
        gradient, o, q, k, v = _for_kernel(d_output.to(output.dtype), output, r.query, r.key, r.value)
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, q, k, v, o, lse, 0.0, True, scale=r.scale
        )
        cut = [x[..., : like.shape[-1]] for x, like in ((dq, r.query), (dk, r.key), (dv, r.value))]
        if finite(*cut):
            return {name: x.contiguous() for name, x in zip(("query", "key", "value"), cut, strict=True)}
    return strips.backward(r.request, 0, (output, lse), d_output, bias_grad="bias" in needed)._asdict()


FLASH = Operator(
    Kernel(
        name="sdpa",
        call=Flash,
        results=Results,
        forward=_forward,
        shapes=_shapes,
        backward=_backward,
        saved=("output", "lse"),
        gradients=("query", "key", "value", "bias"),
    )
)
