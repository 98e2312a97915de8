"""Starting kernels: one place, where tests, the cost model and the compilation without a GPU can look on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

# A product and a sum in one rounding: what Triton does by itself up to 3.9, and is told from then on.
ALWAYS = {"enable_fp_fusion": True}

Runner = Callable[[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]], None]


def _run(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    kernel[grid](*arguments, **options)


_runner: Runner = _run


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Run `kernel` for each point of the grid; nothing where that is empty."""
    if all(grid):
        _runner(kernel, grid, arguments, {**ALWAYS, **options})


@contextmanager
def instead(runner: Runner) -> Iterator[None]:
    """Within it, `runner` is called in place of a launch."""
    global _runner
    before, _runner = _runner, runner
    try:
        yield
    finally:
        _runner = before


def on(device: torch.device) -> Any:
    """A context in which kernels go to that device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
