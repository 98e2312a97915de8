"""Standard causal attention by PyTorch's own kernel, as it is."""

from __future__ import annotations

from torch.nn import functional as nnf

from selattn.ops.backends.base import Backend
from selattn.ops.request import Attention, Request


class Sdpa(Backend):
    """`torch.nn.functional.scaled_dot_product_attention`, of which it has every restriction."""

    name = "sdpa"

    def refusal(self, request: Request) -> str | None:
        r, rules = request, request.rules
        if rules.selection is not None:
            return "PyTorch's kernel has no F"
        hidden = (r.start, r.until, r.mask, r.bias, rules.window, rules.pattern, rules.softcap)
        if any(x is not None for x in hidden) or r.offset != 0:
            return "it is standard attention with nothing but causality"
        if r.wanted.weights:
            return "PyTorch's kernel does not give its weights"
        if r.scale <= 0:
            return "PyTorch's kernel takes the largest product for the largest logit: the scale must be above 0"
        return None

    def attend(self, request: Request) -> Attention:
        r = request
        output = nnf.scaled_dot_product_attention(
            *(r.query, r.key, r.value),
            dropout_p=r.rules.dropout_p,
            is_causal=True,
            scale=r.scale,
            enable_gqa=r.query.shape[1] != r.key.shape[1],
        )
        return Attention(output)
