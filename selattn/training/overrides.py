"""The fields of a run: what each is, and from `optimizer.lr=1e-3` on the command line to another configuration."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from selattn.errors import SelattnError, advice, shortened
from selattn.training.config import ARCHITECTURE, RunConfig

_ENTRY = re.compile(r"    (\w+): (.+)")


def override(run: RunConfig, assignments: Sequence[str]) -> RunConfig:
    """The run with every `field=value` of the command line set."""
    return changed(run, parsed(run, assignments))


def changed(run: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """The run with other settings, by their dotted names: `{"optimizer.lr": 1e-3}`.

    A run that is given a model to start from keeps of its own model settings those that fine-tuning can change.
    """
    known = fields(run)
    for name in sorted(settings, key=lambda name: name != "start.model"):
        if name not in known:
            raise SelattnError(f"unknown field {shortened(name)!r}; {_advice(name, list(known))}")
        run = _replaced(run, name.split("."), settings[name])
        if name == "start.model" and run.start.model is not None:
            kept = {key: value for key, value in run.model.items() if key not in ARCHITECTURE}
            run = dataclasses.replace(run, model=kept)
    return run


def parsed(run: RunConfig, assignments: Sequence[str]) -> dict[str, Any]:
    """The values of `field=value`, by the name of the field; of one that is set twice the last."""
    kinds, found = fields(run), {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise SelattnError(f"{shortened(assignment)!r} is not of the form field=value, such as optimizer.lr=1e-3")
        if name not in kinds:
            raise SelattnError(f"unknown field {shortened(name)!r}; {_advice(name, list(kinds))}")
        found[name] = parse(text, kinds[name], name)
    return found


def fields(run: RunConfig) -> dict[str, Any]:
    """Every field that can be set, as a dotted name, with its type."""
    found: dict[str, Any] = {}
    for name, kind, value in _annotated(run):
        if name == "model":
            own = inspect.get_annotations(run.model_settings(), eval_str=True)  # without what transformers puts in
            found |= {f"model.{key}": of for key, of in own.items()}
        elif dataclasses.is_dataclass(value):
            found |= {f"{name}.{key}": of for key, of, _ in _annotated(value)}
        elif name != "name":
            found[name] = kind
    return found


def parse(text: str, kind: Any, name: str) -> Any:
    """The value of type `kind` that a text means."""
    try:
        return _parse(text.strip(), kind)
    except ValueError:
        raise SelattnError(f"{name} must be {_describe(kind)}, not {shortened(text)!r}") from None


def _parse(text: str, kind: Any) -> Any:
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _first(text, sorted(inside, key=_order))
    if origin is Literal:
        if text not in inside:
            raise ValueError(text)
        return text
    if origin in (list, tuple):
        if text.startswith("[") != text.endswith("]"):
            raise ValueError(text)  # what was typed is not all that was meant
        parts = text.removeprefix("[").removesuffix("]").split(",")
        return [_parse(part.strip(), inside[0]) for part in parts]
    if kind is types.NoneType:
        return {"none": None, "null": None}[text.lower()] if text.lower() in ("none", "null") else _refuse(text)
    if kind is bool:
        choices = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        return choices[text.lower()] if text.lower() in choices else _refuse(text)
    if kind is str and not text:
        raise ValueError(text)
    if kind in (int, float, str):
        return kind(text)
    raise ValueError(text)


def _first(text: str, kinds: Sequence[Any]) -> Any:
    """What the first of several types makes of a text; a comma or a bracket asks for a list."""
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


def _refuse(text: str) -> Any:
    raise ValueError(text)


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


def _annotated(of: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, resolved type and value of every field of a dataclass."""
    kinds = typing.get_type_hints(type(of))
    for at in dataclasses.fields(of):
        yield at.name, kinds[at.name], getattr(of, at.name)


def _replaced(of: Any, path: Sequence[str], value: Any) -> Any:
    first, *rest = path
    if isinstance(of, Mapping):
        return {**of, first: value}
    return dataclasses.replace(of, **{first: _replaced(getattr(of, first), rest, value) if rest else value})


def _advice(name: str, known: Sequence[str]) -> str:
    """The nearest field; a name without its folder (`lr`) finds the one that ends with it."""
    ends = [full for full in known if full.rpartition(".")[2] == name.rpartition(".")[2]]
    return advice(ends[0] if ends else name, known, "see 'selattn train RUN --show' for all fields")


def descriptions(run: RunConfig) -> dict[str, str]:
    """Every field that can be set, as a dotted name, with what its docstring says of it."""
    own = arguments(type(run))
    found: dict[str, str] = {}
    for at in dataclasses.fields(run):
        value = getattr(run, at.name)
        if at.name == "model":
            found |= {f"model.{name}": text for name, text in arguments(run.model_settings()).items()}
        elif dataclasses.is_dataclass(value):
            found |= {f"{at.name}.{name}": text for name, text in arguments(type(value)).items()}
        elif at.name in own:
            found[at.name] = own[at.name]
    return found


def arguments(of: type) -> dict[str, str]:
    """The entries under `Args:` in a docstring, each on one line."""
    _, _, entries = (inspect.getdoc(of) or "").partition("Args:\n")
    found: dict[str, str] = {}
    name = ""
    for line in entries.splitlines():
        if entry := _ENTRY.fullmatch(line):
            name = entry[1]
            found[name] = entry[2]
        elif name and line.startswith("        "):
            found[name] += f" {line.strip()}"
        else:
            break
    return found
