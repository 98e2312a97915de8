"""Compiling kernels for a card that is not there: what a call would launch, its registers, spills and shared memory.

    found = compile_launches(lambda: forward(tensors on the meta device), 80)

A call on meta tensors (`calls.py`) launches what it would launch on a GPU; `instead` catches that, and Triton compiles
each kernel with exactly these arguments for the target it is told. ptxas says what the code takes.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from selattn.ops.backends.triton.configs import pretend
from selattn.ops.backends.triton.launch import ALWAYS, instead


class Compiled(NamedTuple):
    """What one compiled kernel takes of a card."""

    kernel: str
    options: dict[str, int]  # sizes of tiles, warps, stages
    registers: int  # of a thread
    spill_stores: int  # bytes of a thread
    spill_loads: int
    shared: int  # bytes of shared memory
    tensor: int  # columns of tensor memory, which sm_100 has


def compile_launches(call: Callable[[], object], capability: int) -> list[Compiled]:
    """What `call` would launch on a card of that capability (80 is sm_80), each kernel once. Nothing runs."""
    found: dict[str, Compiled] = {}

    def compile_one(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        name = kernel.fn.__name__
        if name not in found:
            found[name] = _compile(kernel, grid, arguments, options)

    with pretend(capability), _target(capability), instead(compile_one):
        call()
    return list(found.values())


def sources() -> str:
    """A hash of what decides how kernels are compiled: their text, their configurations and how they are launched."""
    folder = Path(__file__).parent
    others = ("arguments", "backward", "calls", "configs", "forward", "launch", "order", "prepare", "step")
    files = [*sorted((folder / "kernels").glob("*.py")), *(folder / f"{name}.py" for name in others)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


_known: dict[int, tuple[object, Compiled]] = {}  # by Triton's object, which it has one of for equal arguments


def _compile(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], options: dict[str, Any]) -> Compiled:
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        made = kernel.warmup(*arguments, grid=grid, **options)
    if id(made) not in _known:
        _known[id(made)] = made, _read(kernel, made, log.getvalue(), options)
    return _known[id(made)][1]


def _read(kernel: Any, made: Any, said: str, options: dict[str, Any]) -> Compiled:
    """From what ptxas said, and from what Triton says."""

    def number(pattern: str) -> int:
        match = re.search(pattern, said)
        if match is None:
            raise RuntimeError(f"ptxas did not say what {kernel.fn.__name__} takes: {said!r}")
        return int(match[1])

    return Compiled(
        kernel.fn.__name__,
        {name: int(value) for name, value in options.items() if name not in ALWAYS},
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes spill stores"),
        number(r"(\d+) bytes spill loads"),
        made.metadata.shared,
        int(getattr(made.metadata, "tmem_size", 0) or 0),
    )


@contextlib.contextmanager
def _target(capability: int) -> Iterator[None]:
    """Within it Triton takes this machine for one with such a card, compiles anew, and shows what ptxas says."""
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase
    from triton.runtime import driver

    class Absent(DriverBase):
        """As much of a driver as the compiler asks for."""

        @classmethod
        def is_active(cls) -> bool:
            return True

        def map_python_to_cpp_type(self, ty: str) -> str:
            raise NotImplementedError

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", capability, 32)

        def get_active_torch_device(self) -> Any:
            raise NotImplementedError

        def get_benchmarker(self) -> Any:
            raise NotImplementedError

        def get_current_device(self) -> int:
            return capability  # compiled kernels are kept for each device

        def get_current_stream(self, device: int) -> int:
            return 0

    before = driver._active
    driver.set_active(Absent())
    try:
        with knobs.compilation.scope(), knobs.nvidia.scope():
            knobs.compilation.always_compile = True
            knobs.nvidia.dump_ptxas_log = True
            yield
    finally:
        driver._active = before
