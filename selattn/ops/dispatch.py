"""Which backend runs a request. Asked for by name, it runs or says why not; "auto" follows one written rule."""

from __future__ import annotations

import difflib
from types import ModuleType

from selattn.errors import SelattnError
from selattn.ops import chunked, reference, sdpa
from selattn.ops.request import Attention, Request

BACKENDS: dict[str, ModuleType] = {"reference": reference, "sdpa": sdpa, "chunked": chunked}


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
    return result


def choose(request: Request) -> str:
    """What "auto" means, the first that applies.

    The attention weights are wanted: `reference`, the only one that has them.
    Standard attention with nothing but causality: `sdpa`, PyTorch's own fastest case.
    Everything else: `chunked`, the fastest for F at every length that was measured, and linear in memory.
    """
    if request.return_weights:
        return "reference"
    return "sdpa" if sdpa.plain_causal(request) and sdpa.refusal(request) is None else "chunked"
