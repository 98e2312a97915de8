"""How a call (a `Request`, or another NamedTuple) becomes the arguments of an operator of torch, and back.

torch's operators take tensors and plain numbers. A call is taken apart by the types of its fields, those of the tuples
inside it too, and put together again in the same order, so that nobody counts arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor

from selattn.ops.patterns import Pattern, decode_pattern, encode_pattern
from selattn.ops.rules import PositionBias
from selattn.ops.selection import Selection


class _Codec(NamedTuple):
    """How a plain value is added to a list of numbers, and read from it again."""

    write: Callable[[Any, list[float]], None]
    read: Callable[[Iterator[float]], Any]


def _number(kind: Callable[[float], Any]) -> _Codec:
    return _Codec(lambda value, to: to.append(float(value)), lambda numbers: kind(next(numbers)))


def _optional(kind: Callable[[float], Any]) -> _Codec:
    """Of a number or None: whether it is there goes before it."""

    def write(value: Any, to: list[float]) -> None:
        to += (0.0, 0.0) if value is None else (1.0, float(value))

    def read(numbers: Iterator[float]) -> Any:
        there, value = next(numbers), next(numbers)
        return kind(value) if there else None

    return _Codec(write, read)


def _several(encode: Callable[[Any], list[int]], decode: Callable[[list[int]], Any]) -> _Codec:
    """Of something that has a form of integers: how many they are goes before them."""

    def write(value: Any, to: list[float]) -> None:
        code = encode(value)
        to.append(float(len(code)))
        to += [float(x) for x in code]

    return _Codec(write, lambda numbers: decode([int(next(numbers)) for _ in range(int(next(numbers)))]))


def _write_nothing(value: Any, to: list[float]) -> None:
    """Of a function of positions, which is a tensor by the time that an operator is called."""
    assert value is None, "the bias by positions has to be evaluated before"


_CODECS: dict[Any, _Codec] = {
    int: _number(int),
    bool: _number(bool),
    float: _number(float),
    int | None: _optional(int),
    float | None: _optional(float),
    Selection | None: _several(Selection.encode, Selection.decode),
    Pattern | None: _several(encode_pattern, decode_pattern),
    PositionBias | None: _Codec(_write_nothing, lambda _: None),
}


class _OneTensor(NamedTuple):
    """A field that is a tensor, or can be given as one."""

    schema: str
    encode: Callable[[Any], Tensor | None] | None = None  # None: as it is
    decode: Callable[[Tensor | None], Any] | None = None


def _encode_strength(strength: float | Tensor) -> Tensor | None:
    """A tensor, so that a strength that changes is not compiled anew; None for 1."""
    if isinstance(strength, Tensor):
        return strength
    return None if strength == 1.0 else torch.tensor(strength, dtype=torch.float64)


def _decode_strength(code: Tensor | None) -> float | Tensor:
    return 1.0 if code is None else code


_TENSORS: dict[Any, _OneTensor] = {
    Tensor: _OneTensor("Tensor"),
    Tensor | None: _OneTensor("Tensor?"),
    float | Tensor: _OneTensor("Tensor?", _encode_strength, _decode_strength),
}


class Arguments:
    """The arguments that a NamedTuple becomes: its tensors, those of tuples inside it last, and a list of its numbers.

    One list, because an operator of many arguments is slow to call. What has no tensor in it is the same in most calls:
    its numbers, and what is read from them, are remembered.

    Attributes:
        tensors: the tensors' names, and their types in the schema.
    """

    def __init__(self, cls: Any, prefix: str = "") -> None:
        self.cls = cls
        self.tensors: dict[str, str] = {}
        self._codecs: list[tuple[int, _Codec]] = []  # of the fields without tensors
        self._own: list[tuple[int, _OneTensor]] = []  # of the fields that are tensors
        self._inside: list[tuple[int, Arguments]] = []  # of the tuples with tensors in them
        for i, (name, kind) in enumerate(get_type_hints(cls).items()):
            part = _TENSORS.get(kind) or _CODECS.get(kind) or Arguments(kind, f"{prefix}{name}_")
            if isinstance(part, _Codec):
                self._codecs.append((i, part))
            elif isinstance(part, _OneTensor):
                self.tensors[prefix + name] = part.schema
                self._own.append((i, part))
            elif part.tensors:
                self._inside.append((i, part))
            else:
                self._codecs.append((i, _Codec(part._write_fields, part._read)))
        for _, part in self._inside:
            self.tensors |= part.tensors
        self._numbers_of = lru_cache(maxsize=256)(self._numbers)
        self._template_of = lru_cache(maxsize=256)(self._template)

    @property
    def schema(self) -> str:
        """The arguments as torch declares them."""
        return ", ".join([*(f"{kind} {name}" for name, kind in self.tensors.items()), "float[] numbers"])

    def flatten(self, value: Any) -> list[Any]:
        """The operator's arguments for a value: its tensors in order, then all its numbers in one list."""
        tensors: list[Tensor | None] = []
        plain: list[Any] = []
        self._take_apart(value, tensors, plain)
        # The compiler looks through what is remembered, and warns of it.
        find = self._numbers if torch.compiler.is_compiling() else self._numbers_of
        return [*tensors, find(tuple(plain))]

    def _take_apart(self, value: Any, tensors: list[Tensor | None], plain: list[Any]) -> None:
        plain += [value[i] for i, _ in self._codecs]
        tensors += [value[i] if part.encode is None else part.encode(value[i]) for i, part in self._own]
        for i, inside in self._inside:
            inside._take_apart(value[i], tensors, plain)

    def _numbers(self, plain: tuple[Any, ...]) -> list[float]:
        """The numbers of the values that `_take_apart` found. Nobody changes this list."""
        numbers: list[float] = []
        self._write(iter(plain), numbers)
        return numbers

    def _write(self, plain: Iterator[Any], to: list[float]) -> None:
        for _, codec in self._codecs:
            codec.write(next(plain), to)
        for _, inside in self._inside:
            inside._write(plain, to)

    def _write_fields(self, value: Any, to: list[float]) -> None:
        """The numbers of a value without tensors."""
        for i, codec in self._codecs:
            codec.write(value[i], to)

    def build(self, args: Iterable[Any]) -> Any:
        """What `flatten` took apart."""
        *tensors, numbers = args
        return self._fill(self._template_of(tuple(numbers)), iter(tensors))

    def _fill(self, template: Any, tensors: Iterator[Tensor | None]) -> Any:
        """A template with its tensors in it."""
        values = list(template)
        for i, part in self._own:
            values[i] = next(tensors) if part.decode is None else part.decode(next(tensors))
        for i, inside in self._inside:
            values[i] = inside._fill(values[i], tensors)
        return self.cls._make(values)

    def _template(self, numbers: tuple[float, ...]) -> Any:
        return self._read(iter(numbers))

    def _read(self, numbers: Iterator[float]) -> Any:
        """The value that was written as these numbers, with None for each tensor; in the order of `_write`."""
        values: list[Any] = [None] * (len(self._codecs) + len(self._own) + len(self._inside))
        for i, codec in self._codecs:
            values[i] = codec.read(numbers)
        for i, inside in self._inside:
            values[i] = inside._read(numbers)
        return self.cls(*values)
