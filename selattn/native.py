"""The compiled library: plain C, built when the package is installed, loaded by ctypes."""

from __future__ import annotations

import ctypes
import functools
import importlib.util


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library, or None where it was not built."""
    spec = importlib.util.find_spec("selattn._native")
    return ctypes.CDLL(spec.origin) if spec is not None and spec.origin else None


def unavailable() -> str | None:
    """Why the library cannot be used; None if it can."""
    if library() is None:
        return "it was not built: install a C compiler (gcc or clang), then run `pip install -e .` again"
    return None
