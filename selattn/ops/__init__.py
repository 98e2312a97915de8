"""Tensors in, tensors out: what F is, attention with it and without, and the backends that compute it."""

from selattn.ops.attention import KernelOptions, causal_attention, selective_attention
from selattn.ops.backends.base import Backend
from selattn.ops.backends.dispatch import backends
from selattn.ops.request import Attention, AuxOutput, AuxRequest, Request
from selattn.ops.rules import Fixed, Pattern, Rules, Strided
from selattn.ops.selection import Selection
from selattn.ops.sequences import Sequences

__all__ = [
    "Attention",
    "AuxOutput",
    "AuxRequest",
    "Backend",
    "Fixed",
    "KernelOptions",
    "Pattern",
    "Request",
    "Rules",
    "Selection",
    "Sequences",
    "Strided",
    "backends",
    "causal_attention",
    "selective_attention",
]
