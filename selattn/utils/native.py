"""The compiled library: plain C++, built when the package is installed, loaded by ctypes; and its structs.

A struct as Python sees it is made from the library's own list of fields (`csrc/fields.h`). A field is set by its name,
every one exactly once, so that neither the order of the fields nor a forgotten one can differ between the languages.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from operator import itemgetter
from pathlib import Path
from struct import Struct as Packer
from typing import Any

import torch  # noqa: F401  first, so that the library shares torch's OpenMP and its threads

from selattn.errors import SelattnError

PACKAGE = Path(__file__).parents[1]
NAME = "_native.so"  # one for every Python and torch: its interface is plain C
REASON = "_native_missing.txt"  # setup.py writes it where it could not build the library

_FORMAT = {"int": "q", "real": "d", "pointer": "P", "strides": "3q"}


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
    if _LIBRARY is None:
        return _MISSING or "it was not built"
    return _WRONG_TARGET


def target() -> str | None:
    """The instruction set that it uses here: avx512, avx2 or plain; None where it was not built."""
    return None if _LIBRARY is None else _LIBRARY.selattn_target().decode()


def _wrong_target() -> str | None:
    """The line for a wrong SELATTN_TARGET: the library would silently use another instruction set."""
    wanted = os.environ.get("SELATTN_TARGET")
    if wanted is None or target() in (None, wanted):
        return None
    return (
        f"SELATTN_TARGET={wanted} is not an instruction set of this machine: unset it, or choose avx512, avx2 or plain"
    )


_WRONG_TARGET = _wrong_target()


class Struct:
    """One struct of the library: `pack(name=value, ...)` gives its bytes, to be handed over by reference.

    Values are numbers, or tensors: a pointer field takes the address of a tensor, and 0 for None; the field of strides
    takes the strides, in elements, of a tensor [B, heads, rows, size].
    """

    def __init__(self, name: str, fields: str) -> None:
        self.name = name
        rows = [line.split() for line in fields.splitlines()]
        self.fields: dict[str, str] = {field: kind for kind, field in rows}
        self._packer = Packer("@" + "".join(_FORMAT[kind] for kind in self.fields.values()))
        self._in_order = itemgetter(*self.fields)
        kinds = list(enumerate(self.fields.values()))
        self._pointers = [at for at, kind in kinds if kind == "pointer"]
        self._strides = [at for at, kind in reversed(kinds) if kind == "strides"]  # last first: each becomes three

    @property
    def size(self) -> int:
        """In bytes."""
        return self._packer.size

    def pack(self, **values: Any) -> bytes:
        """The bytes of the struct. The caller keeps the tensors alive as long as the library reads them."""
        # Runs at every step of decoding. All fields are there, and the number is the same: so there are no others.
        try:
            flat: list[Any] = list(self._in_order(values))
        except KeyError:
            raise self._mismatch(values) from None
        if len(values) != len(self.fields):
            raise self._mismatch(values)
        for at in self._pointers:
            value = flat[at]
            flat[at] = 0 if value is None else value.data_ptr()
        for at in self._strides:
            value = flat[at]
            flat[at : at + 1] = (0, 0, 0) if value is None else value.stride()[:3]
        return self._packer.pack(*flat)

    def _mismatch(self, values: dict[str, Any]) -> TypeError:
        missing, surplus = self.fields.keys() - values.keys(), values.keys() - self.fields.keys()
        return TypeError(
            f"struct {self.name}: missing {sorted(missing)}, unknown {sorted(surplus)}; if nothing changed here, "
            "the compiled library is of another version: build it again with `python setup.py build_ext --inplace`"
        )


@cache
def struct(name: str) -> Struct:
    """The struct of that name, as the library lays it out."""
    fields = _ask("selattn_fields", name, ctypes.c_char_p)
    found = Struct(name, fields.decode())
    assert found.size == constant(f"sizeof({name})"), f"struct {name} is laid out in another way than here"
    return found


@cache
def constant(name: str) -> int:
    """A number that the library was compiled with."""
    return int(_ask("selattn_constant", name, ctypes.c_int64))


def _ask(function: str, name: str, kind: Any) -> Any:
    assert _LIBRARY is not None
    call = getattr(_LIBRARY, function)
    call.restype = kind
    return call(name.encode())
