"""Which backend runs. Asked for by name, it runs or says why not; "auto" follows one written rule.

A new backend is a file here and a line in `BACKENDS`; with its name in `FAST` or `FAST_CACHE`, "auto" takes it too. A
backend of the user's own needs no line: the object itself is accepted wherever a name is.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from selattn.errors import SelattnError, unknown
from selattn.ops.backends.base import Backend
from selattn.ops.backends.chunked import Chunked
from selattn.ops.backends.cpu import Cpu
from selattn.ops.backends.reference import Reference, Sdpa
from selattn.ops.backends.triton import Triton
from selattn.ops.eviction import Order, OrderRequest, StepRequest
from selattn.ops.request import Attention, Request

AUTO = "auto"
BACKENDS: dict[str, Backend] = {each.name: each for each in (Reference(), Sdpa(), Chunked(), Cpu(), Triton())}

# What "auto" tries for attention, by the kind of device, before "chunked", which runs everywhere. On the CPU the
# compiled kernel is the fastest at nearly every length measured; on a GPU PyTorch's own is for standard attention.
FAST = {"cpu": ("cpu", "sdpa"), "cuda": ("sdpa", "triton")}
# The same for the eviction order and a step of decoding, before plain PyTorch.
FAST_CACHE = {"cuda": ("triton", "cpu")}


def backends() -> dict[str, str | None]:
    """Every backend, with None if it is available and else the reason why it is not."""
    return {name: backend.unavailable() for name, backend in BACKENDS.items()}


def find_backend(backend: str | Backend) -> Backend:
    """The backend of a name, or the backend itself."""
    if isinstance(backend, Backend):
        return backend
    if not isinstance(backend, str):
        raise SelattnError(f"backend must be a name or a selattn.ops.Backend, not {type(backend).__name__}")
    if backend not in BACKENDS:
        raise SelattnError(unknown("backend", backend, [AUTO, *BACKENDS]))
    return BACKENDS[backend]


def cast(*tensors: Any) -> tuple[Any, ...]:
    """Under autocast: the inputs in its dtype, as `scaled_dot_product_attention` takes them; fp64 is left alone."""
    device = tensors[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):  # "meta" has none, and asking is an error
        return tensors
    low = torch.get_autocast_dtype(device)
    half = (torch.float32, torch.bfloat16, torch.float16)
    return tuple(x.to(low) if x is not None and x.dtype in half else x for x in tensors)


def attend(request: Request, backend: str | Backend) -> Attention:
    """Run the request on that backend, under autocast in its dtype; from here on it is off, so that F stays in fp32."""
    wanted = request.wanted.of(request.rules)
    if wanted is not request.wanted:
        request = request._replace(wanted=wanted)
    device = request.query.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return _attend(request, backend)
    names = ("query", "key", "value", "selection_query", "selection_key")
    inputs = cast(*(getattr(request, name) for name in names))
    with torch.autocast(device, enabled=False):
        return _attend(request._replace(**dict(zip(names, inputs, strict=True))), backend)


def _attend(request: Request, backend: str | Backend) -> Attention:
    if isinstance(backend, str) and backend == AUTO:
        chosen, reason = _choose(request)
    else:
        chosen = find_backend(backend)
        reason = _refusal(chosen, request)
    if reason is not None:
        raise _cannot(chosen, reason, lambda other: _refusal(other, request))
    result = chosen.attend(request)
    if request.wanted.living and result.aux.living is None:  # a backend that leaves nothing out
        ones = request.query.new_ones(request.query.shape[0], dtype=torch.float64)
        result = result._replace(aux=result.aux._replace(living=ones))
    return result


def choose(request: Request) -> str:
    """What "auto" means for attention, the first that applies.

    The attention weights, torch.func or a forward-mode derivative are wanted: `reference`, the only one that has them.
    What `FAST` lists for the device, if it can do it and can be trusted there (see `Backend.trusted`).
    Everything else: `chunked`, linear in memory too.
    """
    return _choose(request)[0].name


def _choose(request: Request) -> tuple[Backend, str | None]:
    """The backend, and why it cannot do it after all; None if it can."""
    last = "chunked"
    if request.wanted.weights or _transformed():
        last = "reference"
    else:
        for name in FAST.get(request.query.device.type, ("sdpa",)):
            backend = BACKENDS[name]
            if not backend.refusal(request) and backend.trusted(request.query):
                return backend, None
    return BACKENDS[last], _refusal(BACKENDS[last], request)


def _refusal(backend: Backend, request: Request) -> str | None:
    """Why a backend cannot do it here; None if it can."""
    reason = backend.unavailable() or backend.refusal(request)
    if reason is None and not backend.plain and _transformed():
        return "it has plain backward passes only, no torch.func and no dual numbers"
    return reason


def _transformed() -> bool:
    """Whether derivatives are taken in a way that only PyTorch's own operators know: others would give a silent 0."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def order(request: OrderRequest, backend: str | Backend) -> tuple[Order, Tensor | None]:
    """The eviction order by that backend; "auto" takes the first of `FAST_CACHE` that can, else plain PyTorch."""
    chosen = _for_cache(request.tokens.query, backend, "the eviction order", methodcaller("order_refusal", request))
    return chosen.order(request)


def step(request: StepRequest, backend: str | Backend) -> Tensor:
    """A step of decoding by that backend; "auto" takes the first of `FAST_CACHE` that can, else plain PyTorch."""
    chosen = _for_cache(request.tokens.query, backend, "a step of decoding", methodcaller("step_refusal", request))
    return chosen.step(request)


def _for_cache(query: Tensor, backend: str | Backend, what: str, refusal: Callable[[Backend], str | None]) -> Backend:
    if not isinstance(backend, str) or backend != AUTO:
        chosen = find_backend(backend)
        if reason := chosen.unavailable() or refusal(chosen):
            raise _cannot(chosen, f"{what}: {reason}", lambda other: other.unavailable() or refusal(other))
        return chosen
    if not torch._C._are_functorch_transforms_active():  # whose tensors have no memory that a kernel could read
        for name in FAST_CACHE.get(query.device.type, ("cpu",)):
            if not refusal(BACKENDS[name]) and BACKENDS[name].trusted(query):
                return BACKENDS[name]
    return BACKENDS["chunked"]


def _cannot(backend: Backend, reason: str, refusal: Callable[[Backend], str | None]) -> SelattnError:
    able = [name for name, other in BACKENDS.items() if not refusal(other)]
    use = f"use {' or '.join(able)}, or auto" if able else "use auto"
    return SelattnError(f"backend {backend.name!r} cannot do this: {reason}; {use}")
