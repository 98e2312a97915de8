"""The compiled library's structs as Python sees them, made from the library's own list of their fields.

`csrc/fields.h` has the other half. A field is set by its name, every one exactly once, so that neither the order of
the fields nor a forgotten one can differ between the two languages.
"""

from __future__ import annotations

import ctypes
from functools import cache
from operator import itemgetter
from struct import Struct as Packer
from typing import Any

from selattn.utils import native

_FORMAT = {"int": "q", "real": "d", "pointer": "P", "strides": "3q"}


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
        """How many bytes the struct has."""
        return self._packer.size

    def pack(self, **values: Any) -> bytes:
        """The bytes of the struct. The caller keeps the tensors alive as long as the library reads them."""
        # Every step of decoding passes here: as few looks as can be. As many fields, and each of them found: the same.
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
    """The library's struct of that name."""
    fields = _ask("selattn_fields", name, ctypes.c_char_p)
    found = Struct(name, fields.decode())
    assert found.size == constant(f"sizeof({name})"), f"struct {name} is laid out in another way than here"
    return found


@cache
def constant(name: str) -> int:
    """A number that the library was compiled with."""
    return int(_ask("selattn_constant", name, ctypes.c_int64))


def _ask(function: str, name: str, kind: Any) -> Any:
    library = native.library()
    assert library is not None
    call = getattr(library, function)
    call.restype = kind
    return call(name.encode())
