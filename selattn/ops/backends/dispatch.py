"""Which backend runs a request. Asked for by name, it runs or says why not; "auto" follows one written rule.

A new backend is a file here, and a line in `BACKENDS`. A backend of the user's own needs no line: the object itself is
taken wherever a name is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from selattn.errors import SelattnError, unknown
from selattn.ops.backends.base import Backend
from selattn.ops.backends.chunked import Chunked
from selattn.ops.backends.cpu import Cpu
from selattn.ops.backends.reference import Reference
from selattn.ops.backends.sdpa import Sdpa
from selattn.ops.backends.triton import Triton, selfcheck
from selattn.ops.operator import in_transform
from selattn.ops.order import Order, OrderRequest, StepRequest
from selattn.ops.request import Attention, Request

AUTO = "auto"


TRITON = Triton()
BACKENDS: dict[str, Backend] = {each.name: each for each in (Reference(), Sdpa(), Chunked(), Cpu(), TRITON)}


def backends() -> dict[str, str | None]:
    """Every backend, with None if it is available and else the reason why it is not."""
    return {name: backend.unavailable() for name, backend in BACKENDS.items()}


def is_auto(backend: str | Backend) -> bool:
    """Whether the choice is left to `choose`."""
    return isinstance(backend, str) and backend == AUTO


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
    if is_auto(backend):
        found, reason = _choose(request)
    else:
        found = find_backend(backend)
        reason = _refusal(found, request)
    if reason is not None:
        raise _cannot(found, reason, [name for name, other in BACKENDS.items() if not _refusal(other, request)])
    result = found.attend(request)
    if request.wanted.living and result.aux.living is None:  # a backend that leaves nothing out
        ones = request.query.new_ones(request.query.shape[0], dtype=torch.float64)
        result = result._replace(aux=result.aux._replace(living=ones))
    return result


def _refusal(backend: Backend, request: Request) -> str | None:
    """Why a backend cannot do it here; None if it can."""
    reason = backend.unavailable() or backend.refusal(request)
    if reason is None and not backend.plain and _transformed():
        return "it has plain backward passes only, no torch.func and no dual numbers"
    return reason


def _transformed() -> bool:
    """Whether derivatives are taken in a way that only PyTorch's own operators know: others would give a silent 0."""
    return in_transform() or forward_ad._current_level >= 0


def order(request: OrderRequest, backend: str | Backend) -> tuple[Order, Tensor | None]:
    """The eviction order by that backend; "auto" is `triton` or `cpu` where that can do it, else plain PyTorch."""
    found = find_backend(backend) if not is_auto(backend) else BACKENDS["cpu"]
    if is_auto(backend) and not TRITON.order_refusal(request) and _trusted(request.tokens.query):
        found = TRITON
    reason = found.unavailable() or found.order_refusal(request)
    if reason and is_auto(backend):
        return BACKENDS["chunked"].order(request)
    if reason:
        able = [name for name, other in BACKENDS.items() if not (other.unavailable() or other.order_refusal(request))]
        raise _cannot(found, f"the eviction order: {reason}", able)
    return found.order(request)


def step(request: StepRequest, backend: str | Backend) -> Tensor:
    """One step of decoding by that backend; "auto" is `triton` or `cpu` where that can do it, else plain PyTorch."""
    found = find_backend(backend) if not is_auto(backend) else BACKENDS["cpu"]
    query = request.tokens.query
    # The device first: every layer of every token passes here, and the words of a refusal take a while.
    if is_auto(backend) and query.is_cuda and not TRITON.step_refusal(request) and _trusted(query):
        found = TRITON
    reason = found.unavailable() or found.step_refusal(request)
    if reason and is_auto(backend):
        return BACKENDS["chunked"].step(request)
    if reason:
        able = [name for name, other in BACKENDS.items() if not (other.unavailable() or other.step_refusal(request))]
        raise _cannot(found, f"a step of decoding: {reason}", able)
    return found.step(request)


def _trusted(query: Tensor) -> bool:
    """Whether "auto" may give these tokens to the GPU's kernels: they are on a CUDA device, and it has passed there."""
    return query.device.type == "cuda" and _passed(str(query.device), str(query.dtype), query.shape[-1])


def _passed(device: str, dtype: str, features: int) -> bool:
    """A graph that is compiled has the answer in it: the question is asked, and the check made, while it is traced."""
    if reason := TRITON.unavailable():
        selfcheck.warn_once(f"'auto' takes the slower 'chunked' on {device}: {reason}")
        return False
    found = getattr(torch, dtype.removeprefix("torch."))
    return selfcheck.failure(selfcheck.place_of(torch.device(device), found, features), TRITON) is None


# What `torch.compiler.assume_constant_result` sets; to call it would import the compiler with the package.
_passed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _cannot(backend: Backend, reason: str, able: list[str]) -> SelattnError:
    use = f"use {' or '.join(able)}, or auto" if able else "use auto"
    return SelattnError(f"backend {backend.name!r} cannot do this: {reason}; {use}")


def choose(request: Request) -> str:
    """What "auto" means for attention, the first that applies.

    The attention weights, torch.func or a forward-mode derivative are wanted: `reference`, the only one that has them.
    On the CPU, everything that it can do: `cpu`, the compiled kernel, the fastest at nearly every length measured.
    Standard attention with nothing but causality: `sdpa`, PyTorch's own fastest case.
    On CUDA devices, everything that it can do: `triton`, once it has passed its self-check on the device.
    Everything else: `chunked`, linear in memory too.
    """
    return _choose(request)[0].name


def _choose(request: Request) -> tuple[Backend, str | None]:
    """The backend, and why it cannot do it after all; None if it can."""
    if request.wanted.weights or _transformed():
        return BACKENDS["reference"], _refusal(BACKENDS["reference"], request)
    cpu, sdpa = BACKENDS["cpu"], BACKENDS["sdpa"]
    if not (cpu.unavailable() or cpu.refusal(request)):
        return cpu, None
    if not (sdpa.unavailable() or sdpa.refusal(request)):
        return sdpa, None
    if request.query.device.type == "cuda" and not TRITON.refusal(request) and _trusted(request.query):
        return TRITON, _refusal(TRITON, request)
    return BACKENDS["chunked"], _refusal(BACKENDS["chunked"], request)
