"""What documents quote from records: expressions over them, and values rounded as a text has them.

Each file in the folder of records is a name, and so is each folder in it. `a.b` is the field b (`a["b"]` if that is no
identifier), and `rows(n=2048)` the one row with that field. `mean`, `min`, `max` and the like are there. `spread(x, 3)`
is "4.955 (4.831 to 5.034)": the mean and the range of one number for each seed.
"""

from __future__ import annotations

import ast
import json
import re
import statistics
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any


class Fault(Exception):
    """What is wrong with a source."""


class Node:
    """A dict or list of a record, to be read by expressions; leaves are plain values."""

    def __init__(self, data: dict[str, Any] | list[Any], path: str) -> None:
        self._data, self._path = data, path

    def _get(self, key: Any) -> Any:
        try:
            found = self._data[key]
        except (KeyError, IndexError, TypeError):
            raise Fault(f"{self._path} has no {key!r}") from None
        return Node(found, f"{self._path}[{key!r}]") if isinstance(found, dict | list) else found

    def __getattr__(self, name: str) -> Any:
        keys = [key for key in self._data if isinstance(key, str) and re.sub(r"\W", "_", key) == name]
        if not isinstance(self._data, dict) or len(keys) != 1:
            raise Fault(f"{self._path} has {len(keys) or 'no'} {name!r}")
        return self._get(keys[0])

    def __getitem__(self, key: Any) -> Any:
        return self._get(key)

    def __call__(self, **fields: Any) -> Any:
        rows = list(enumerate(self._data)) if isinstance(self._data, list) else []
        found = [i for i, row in rows if isinstance(row, dict) and fields.items() <= row.items()]
        if len(found) != 1:
            raise Fault(f"{self._path} has {len(found) or 'no'} rows with {fields}")
        return self._get(found[0])

    def __iter__(self) -> Iterator[Any]:
        return iter(self._data) if isinstance(self._data, dict) else (self._get(i) for i in range(len(self._data)))

    def __len__(self) -> int:
        return len(self._data)

    def __eq__(self, other: object) -> bool:
        return self._data == (other._data if isinstance(other, Node) else other)

    __hash__ = None  # type: ignore[assignment]


def read_records(folder: Path) -> dict[str, Node]:
    """All records of a folder and of the folders in it, each under its name."""

    def read(path: Path) -> Any:
        if path.is_dir():
            return {each.stem: read(each) for each in sorted(path.iterdir()) if each.is_dir() or each.suffix == ".json"}
        return json.loads(path.read_text())

    return {re.sub(r"\W", "_", name): Node(data, name) for name, data in read(folder).items()}


def mean(values: Any) -> float:
    """The mean, summed without rounding in between."""
    return statistics.fmean(values)


def spread(values: Any, digits: int) -> str:
    """Mean and range of numbers, one for each seed, or of their summary (mean, min, max)."""
    summary = isinstance(values, Node) and isinstance(values._data, dict)
    found = (values.mean, values.min, values.max) if summary else (mean(values), min(values), max(values))
    middle, low, high = (f"{value:,.{digits}f}" for value in found)
    return f"{middle} ({low} to {high})"


FUNCTIONS = {each.__name__: each for each in (abs, all, any, enumerate, len, max, min, range, sorted, str, sum, zip)}
FUNCTIONS |= {"mean": mean, "spread": spread}


def names(source: str) -> set[str]:
    """The names that a source reads, but for those that it gives itself."""
    try:
        nodes = list(ast.walk(ast.parse(source.strip(), mode="eval")))
    except SyntaxError as error:
        raise Fault(f"{error.msg}: {source}") from None
    read = {node.id for node in nodes if isinstance(node, ast.Name)}
    own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return read - own - {node.arg for node in nodes if isinstance(node, ast.arg)} - set(FUNCTIONS)


def value_of(source: str, known: Mapping[str, Any]) -> Any:
    """What a source gives."""
    try:
        missing = names(source) - set(known)
        if missing:
            raise Fault(f"there is no record {', '.join(sorted(missing))}")
        return eval(source, {"__builtins__": FUNCTIONS, **known})
    except Fault:
        raise
    except Exception as error:
        raise Fault(f"{type(error).__name__}: {error}: {source}") from None


def rounded(value: float, like: str) -> str:
    """The value as the page has it to write: with the digits, the percent sign and so on of `like`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Fault(f"{value!r} is not a number")
    bare = like.rstrip("%x")
    exact = Decimal(value) * (100 if like.endswith("%") else 1)
    digits = len(bare.partition(".")[2])
    text = f"{exact:{',' if ',' in like or abs(exact) >= 1000 else ''}.{digits}f}{like[len(bare) :]}"
    # "100%" and "0%" say all and none, so nearly all and nearly none need another digit.
    if like.endswith("%") and not digits and text in ("0%", "100%") and exact not in (0, 100):
        return f"{exact:.1f}%"
    return text
