"""What the command line writes for objects: `optimizer.lr=1e-3` for a field of a run, `factor=2` for an `Until`."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import types
from collections.abc import Sequence
from typing import Any, Literal, Union, get_args, get_origin

from selattn.errors import SelattnError, nearest, shortened
from selattn.pruning.search import Until
from selattn.training.config import RunConfig, changed, check_field, fields

_ENTRY = re.compile(r"    (\w+): (.+)")
FORMS = ("baseline=MODEL", "tolerance=NATS", "loss=NATS", "factor=X", "tokens=TOTAL", "floor")
_MUST_BE = {
    "tolerance": "a finite number of at least 0",
    "loss": "a finite number of at least 0",
    "factor": "a finite number above 0",
    "tokens": "a whole number above 0",
}


def override(run: RunConfig, assignments: Sequence[str]) -> RunConfig:
    """The run with every `field=value` set."""
    return changed(run, parsed(run, assignments))


def parsed(run: RunConfig, assignments: Sequence[str]) -> dict[str, Any]:
    """The values of `field=value`, by the name of the field; of one that is set twice the last."""
    kinds, values = fields(run), {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise SelattnError(f"{shortened(assignment)!r} is not of the form field=value, such as optimizer.lr=1e-3")
        check_field(name, kinds)
        try:
            values[name] = _parse(text.strip(), kinds[name])
        except ValueError:
            raise SelattnError(f"{name} must be {_describe(kinds[name])}, not {shortened(text)!r}") from None
    return values


def _parse(text: str, kind: Any) -> Any:
    """The value of a type that a text means; ValueError if there is none."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _first(text, sorted(inside, key=_order))
    if origin is Literal and text in inside:
        return text
    if origin in (list, tuple):
        if text.startswith("[") != text.endswith("]"):
            raise ValueError(text)  # what was typed is not all that was meant
        parts = text.removeprefix("[").removesuffix("]").split(",")
        return [_parse(part.strip(), inside[0]) for part in parts]
    if kind is types.NoneType and text.lower() in ("none", "null"):
        return None
    if kind is bool and text.lower() in ("true", "yes", "1", "false", "no", "0"):
        return text.lower() in ("true", "yes", "1")
    if kind in (int, float, str) and text:
        return kind(text)
    raise ValueError(text)


def _first(text: str, kinds: Sequence[Any]) -> Any:
    """The value of the first type that fits; a comma or a bracket asks for a list."""
    lists = [kind for kind in kinds if get_origin(kind) in (list, tuple)]
    listed = "," in text or text.startswith("[") or text.endswith("]")
    for kind in kinds:
        if kind in lists and not listed and any(k in (int, float, str) for k in kinds):
            continue
        if kind is str and lists and listed:
            continue
        try:
            return _parse(text, kind)
        except ValueError:
            continue
    raise ValueError(text)


def _order(kind: Any) -> int:
    """A text is anything, so it is tried last; a list before it, and None first of all."""
    return {types.NoneType: 0, str: 3}.get(kind, 2 if get_origin(kind) in (list, tuple) else 1)


def _describe(kind: Any) -> str:
    """A type as a reader would say it."""
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_describe, get_args(kind))))
    if get_origin(kind) in (list, tuple):
        return f"a list ({_describe(get_args(kind)[0])}, separated by commas)"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", types.NoneType: "none"}
    return names.get(kind, str(kind))


def descriptions(run: RunConfig) -> dict[str, str]:
    """Every field that can be set, as a dotted name, with what its docstring says of it."""
    own, texts = _arguments(type(run)), dict[str, str]()
    for at in dataclasses.fields(run):
        value = getattr(run, at.name)
        if at.name == "model" or dataclasses.is_dataclass(value):
            section = run.model_settings() if at.name == "model" else type(value)
            texts |= {f"{at.name}.{name}": text for name, text in _arguments(section).items()}
        elif at.name in own:
            texts[at.name] = own[at.name]
    return texts


def _arguments(of: type) -> dict[str, str]:
    """The entries under `Args:` in a docstring, each on one line."""
    _, _, entries = (inspect.getdoc(of) or "").partition("Args:\n")
    texts: dict[str, str] = {}
    name = ""
    for line in entries.splitlines():
        if entry := _ENTRY.fullmatch(line):
            name = entry[1]
            texts[name] = entry[2]
        elif name and line.startswith("        "):
            texts[name] += f" {line.strip()}"
        else:
            break
    return texts


def parse_until(texts: Sequence[str]) -> Until:
    """Where a search stops: each text is one of `FORMS`."""
    names = [form.partition("=")[0] for form in FORMS]
    conditions: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if name not in names or (name != "floor") != bool(equals and value):
            near = nearest(name, names)
            hint = f"choose {', '.join(FORMS)}" if near is None else f"did you mean {FORMS[names.index(near)]}?"
            raise SelattnError(f"unknown condition {text!r}; {hint}")
        if name in conditions:
            raise SelattnError(f"{name} is given twice: give it once")
        conditions[name] = value if name in ("baseline", "floor") else _number(name, value)
    conditions.pop("floor", None)  # the end of every search
    return Until(**conditions)


def _number(name: str, value: str) -> float | int:
    try:
        number = int(value) if name == "tokens" else float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf or (number == 0 and name in ("tokens", "factor")):
        raise SelattnError(f"{name} must be {_MUST_BE[name]}, not {value!r}")
    return number
