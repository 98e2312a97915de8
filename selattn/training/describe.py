"""What each field of a run is, in the words of the class that defines it: its docstring is the only place."""

from __future__ import annotations

import dataclasses
import inspect
import re

from selattn.training.config import RunConfig

_ENTRY = re.compile(r"    (\w+): (.+)")


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
