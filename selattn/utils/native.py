"""The compiled library: plain C++, built when the package is installed, loaded by ctypes."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch  # noqa: F401  first, so that the library shares torch's OpenMP and its threads

from selattn.errors import SelattnError

PACKAGE = Path(__file__).parents[1]
NAME = "_native.so"  # one for every Python and torch: its interface is plain C
REASON = "_native_missing.txt"  # setup.py writes it where it could not build the library


def load(package: Path = PACKAGE) -> ctypes.CDLL | None:
    """The library in the package's own folder, or None where it was not built; one line if it cannot be loaded."""
    path = package / NAME
    if not path.is_file():
        return None
    try:
        found = ctypes.CDLL(str(path))
        found.selattn_target.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        mend = "install libgomp (libgomp1 on Debian)" if "libgomp" in str(error) else "install selattn again"
        raise SelattnError(f"it cannot be loaded: {error}; {mend}, on this machine") from error
    return found


def why_missing(package: Path = PACKAGE) -> str:
    """Why the package in this folder has no library and what to do."""
    try:
        return f"it was not built: {(package / REASON).read_text(encoding='utf-8').strip()}"
    except OSError:  # it was never tried
        return f"it was not built: this copy of selattn was never installed; run `pip install -e .` in {package.parent}"


def _load_or_say_why() -> tuple[ctypes.CDLL | None, str | None]:
    try:
        found = load()
    except SelattnError as error:
        return None, str(error)
    return found, None if found else why_missing()


_LIBRARY, _MISSING = _load_or_say_why()  # plain globals, set once: a compiled graph reads the first


def library() -> ctypes.CDLL | None:
    """The library, or None where there is none."""
    return _LIBRARY


def unavailable() -> str | None:
    """Why the library cannot be used; None if it can."""
    if library() is None:
        return _MISSING or "it was not built"
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
