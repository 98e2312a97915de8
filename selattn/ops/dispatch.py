"""Which backend runs a request. Asked for by name, it runs or says why not; "auto" follows one written rule."""

from __future__ import annotations

import difflib
from types import ModuleType

import torch

from selattn.errors import SelattnError
from selattn.ops import chunked, cpu, reference, sdpa
from selattn.ops.request import Attention, Request

BACKENDS: dict[str, ModuleType] = {"reference": reference, "sdpa": sdpa, "chunked": chunked, "cpu": cpu}


def backends() -> dict[str, str | None]:
    """Every backend, with None if it is available and else the reason why it is not."""
    return {name: module.unavailable() for name, module in BACKENDS.items()}


def attend(request: Request, backend: str) -> Attention:
    """Run the request on the backend of that name."""
    name = choose(request) if backend == "auto" else backend
    if name not in BACKENDS:
        near = difflib.get_close_matches(name, [*BACKENDS, "auto"], 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise SelattnError(f"unknown backend {name!r}{hint}: choose auto, {', '.join(BACKENDS)}")
    module = BACKENDS[name]
    reason = module.unavailable() or module.refusal(request)
    if reason:
        can = [n for n, m in BACKENDS.items() if not (m.unavailable() or m.refusal(request))]
        raise SelattnError(f"backend {name!r} cannot do this: {reason}; use {' or '.join(can)}, or auto")
    result: Attention = module.attend(request)
    if request.return_living and result.living is None:  # a backend that leaves nothing out
        result = result._replace(living=request.query.new_ones(request.query.shape[0], dtype=torch.float64))
    return result


def choose(request: Request) -> str:
    """What "auto" means, the first that applies.

    The attention weights are wanted: `reference`, the only one that has them.
    Standard attention with nothing but causality: `sdpa`, PyTorch's own fastest case.
    Everything that it can do: `cpu`, the compiled kernel, the fastest at every length that was measured.
    Everything else: `chunked`, linear in memory too.
    """
    if request.return_weights:
        return "reference"
    if sdpa.plain_causal(request) and sdpa.refusal(request) is None:
        return "sdpa"
    return "cpu" if (cpu.unavailable() or cpu.refusal(request)) is None else "chunked"
