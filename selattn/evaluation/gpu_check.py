"""Whether the GPU kernels are right on this machine's device: all examples of the battery, held against the reference.

found = check_gpu()
[example.name for example in found.examples if example.wrong]
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from selattn.errors import SelattnError
from selattn.ops.backends.triton import Triton, battery, selfcheck, support
from selattn.utils.progress import Progress


@dataclass(frozen=True)
class Example:
    """One call, and what is wrong with its results.

    Attributes:
        name: of the situation.
        dtype: of queries, keys and values.
        size: features of a head.
        tokens: of a sequence, but for situations that have more.
        wrong: a line for each result that is off; none if the kernels are right.
        seconds: that it took, the reference and compiling included.
    """

    name: str
    dtype: str
    size: int
    tokens: int
    wrong: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class GpuCheck:
    """The record of `selattn bench --check`.

    Attributes:
        device: the card, with its compute capability; or Triton's interpreter.
        driver: its version.
        kernels: a hash of the kernels' text.
        memory: of the device, in bytes; 0 for the interpreter.
        failed: how many examples are wrong.
        examples: all of them.
    """

    device: str
    driver: str
    kernels: str
    memory: int
    failed: int
    examples: tuple[Example, ...]


def check_gpu(*, progress: Progress | None = None) -> GpuCheck:
    """Run every example on the CUDA device; with TRITON_INTERPRET=1 small ones on the CPU."""
    if reason := support.unavailable():
        raise SelattnError(f"the GPU kernels cannot be checked: {reason}")
    device = torch.device("cpu" if support.interpreted() else "cuda")
    plan, backend, found = battery.whole(device), Triton(), []
    progress = progress or Progress()
    progress.begin(len(plan), "examples")
    for name, size in plan:
        began = time.perf_counter()
        outcome = battery.run(name, size, backend)
        seconds = time.perf_counter() - began
        found.append(Example(name, outcome.dtype, size.size, size.n, tuple(outcome.wrong), seconds))
        progress.advance()
    progress.end()
    identity = selfcheck.identity(device)
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    failed = sum(bool(example.wrong) for example in found)
    return GpuCheck(identity["device"], identity["driver"], identity["kernels"], memory, failed, tuple(found))
