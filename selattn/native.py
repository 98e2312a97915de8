"""The compiled library: plain C++, built when the package is installed, loaded by ctypes."""

from __future__ import annotations

import ctypes
import importlib.util
import os

import torch  # noqa: F401  first, so that the library shares torch's OpenMP and its threads


def load(name: str = "selattn._native") -> ctypes.CDLL | None:
    """The library, or None where it was not built."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.origin:
        return None
    found = ctypes.CDLL(spec.origin)
    found.selattn_target.restype = ctypes.c_char_p
    return found


_LIBRARY = load()  # a plain global, set once: a compiled graph reads it


def library() -> ctypes.CDLL | None:
    """The library, or None where it was not built."""
    return _LIBRARY


def unavailable() -> str | None:
    """Why the library cannot be used; None if it can."""
    if library() is None:
        return "it was not built: install a C++ compiler (g++), then run `pip install -e .` again"
    return _WRONG_TARGET


def target() -> str | None:
    """The instruction set that it uses here: avx512, avx2 or plain; None where it was not built."""
    return None if _LIBRARY is None else _LIBRARY.selattn_target().decode()


def _wrong_target() -> str | None:
    """What is wrong with SELATTN_TARGET, if it is set: the library would take another instruction set silently."""
    wanted = os.environ.get("SELATTN_TARGET")
    if wanted is None or target() in (None, wanted):
        return None
    return (
        f"SELATTN_TARGET={wanted} is not an instruction set of this machine: unset it, or choose avx512, avx2 or plain"
    )


_WRONG_TARGET = _wrong_target()
