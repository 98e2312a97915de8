"""JSON as typed objects; an error names the place of a missing or wrong value, `curves[0].points`.

A dataclass stands for an object of JSON. Fields with a default may be missing, and unknown fields are ignored: so the
files of earlier and later versions can be read.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

T = TypeVar("T")


class MissingError(Exception):
    """A field is missing: its name, and the place of the object that lacks it, empty for the whole."""

    def __init__(self, place: str, field: str) -> None:
        super().__init__(f"{place or 'it'} lacks {field!r}")
        self.place, self.field = place, field


class KindError(Exception):
    """A value is of the wrong kind; the message says where, and the right kind."""


def from_json(kind: type[T], value: object) -> T:
    """A value of JSON as `kind`: a dataclass, or a type of its fields. Raises `MissingError` or `KindError`."""
    made: T = _read(kind, value, "")
    return made


def if_any(**default: Any) -> Any:
    """A field of a dataclass that is not written if it is empty; its arguments are those of `dataclasses.field`."""
    return dataclasses.field(**default, metadata={"if any": True})


def to_json(value: Any) -> Any:
    """A dataclass, or anything made of them, as JSON has it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        empty: tuple[object, ...] = (None, {}, (), [])
        fields = [(at, getattr(value, at.name)) for at in dataclasses.fields(value)]
        return {at.name: to_json(each) for at, each in fields if not at.metadata.get("if any") or each not in empty}
    if isinstance(value, Mapping):
        return {key: to_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    return value


def _read(kind: Any, value: object, at: str) -> Any:
    origin, inside = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _read_fields(kind, value, at)
    if origin in (Union, types.UnionType):
        return _read_first(inside, value, at)
    if origin is Literal and value in inside:
        return value
    if origin in (list, tuple, Sequence) and isinstance(value, list):
        made = [_read(inside[0], each, f"{at}[{i}]") for i, each in enumerate(value)]
        return tuple(made) if origin is tuple else made
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {_key(inside[0], key): _read(inside[1], each, _place(at, key)) for key, each in value.items()}
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind in (int, str, bool, types.NoneType) and type(value) is kind:
        return value
    shown = repr(value) if isinstance(value, str | int | float | bool | None) else _name(type(value))
    raise KindError(f"{at or 'it'} must be {_name(kind)}, not {shown[:80]}")


def _read_fields(kind: Any, value: object, at: str) -> Any:
    if not isinstance(value, dict):
        raise KindError(f"{at or 'it'} must be an object with fields, not {_name(type(value))}")
    made = {}
    for field in dataclasses.fields(kind):
        if field.name in value:
            made[field.name] = _read(_hints(kind)[field.name], value[field.name], _place(at, field.name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise MissingError(at, field.name)
    return kind(**made)


def _read_first(kinds: Sequence[Any], value: object, at: str) -> Any:
    """The first kind that fits; if none does, the error of the last kind other than `None`."""
    wrong: Exception | None = None
    for kind in kinds:
        try:
            return _read(kind, value, at)
        except (MissingError, KindError) as error:
            if wrong is None or kind is not types.NoneType:
                wrong = error
    assert wrong is not None
    raise wrong


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _key(kind: Any, key: str) -> Any:
    """Keys of JSON are texts."""
    return int(key) if kind is int else key


def _place(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _name(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", types.NoneType: "nothing"}
    origin = get_origin(kind) or kind
    if origin in (list, tuple, Sequence):
        return "a list"
    return names.get(kind, "an object with fields" if origin in (dict, Mapping) else str(kind))


def flat(values: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    """Nested settings by one name each: `optimizer.lr`."""
    pairs: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            pairs += flat(value, f"{above}{name}.")
        else:
            pairs.append((f"{above}{name}", value))
    return pairs
