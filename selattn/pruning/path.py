"""The folder of a search, written: a line for each iteration, in a file that is only ever appended to.

The path does not depend on where a search stops. So a search can be interrupted after any iteration and go on, and one
folder serves several thresholds: what is there is read, what is missing is searched. `selattn.evaluation.searches` has
what is in the folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selattn.errors import SelattnError
from selattn.evaluation.searches import PATH, SETTINGS, SearchSettings, Step, read_path, read_settings
from selattn.pruning.until import Until
from selattn.utils.files import write_json, writing
from selattn.utils.folders import folders_for
from selattn.utils.journal import append_line, drop_half_a_line
from selattn.utils.locks import LOCK, locked
from selattn.utils.typed import to_json


def chosen(path: Sequence[Step], until: Until, context: int) -> tuple[int, bool]:
    """The last iteration that meets the threshold, and whether the path goes as far as the threshold."""
    limit = until.limit(path[0].loss)
    for step in path:
        if step.loss > limit:
            return step.iteration - 1, True
        if until.reached(step.budgets, context):
            return step.iteration, True
    return path[-1].iteration, False


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """One search in a folder at a time; a search that has not begun when it ends leaves no folder behind."""
    refusal = f"another process is searching in {folder}: wait for it, or choose another --out"
    with folders_for(folder), locked(folder / LOCK, refusal):
        yield


def past_steps(folder: Path, settings: SearchSettings) -> list[Step]:
    """The path so far of the search that is in a folder, if there is one; it must have the same settings."""
    with writing(folder):
        if not (folder / SETTINGS).exists():
            return []
        _compare(read_settings(folder), settings, folder)
        if (folder / PATH).exists():
            drop_half_a_line(folder / PATH)
        return read_path(folder)


def begin(folder: Path, settings: SearchSettings, first: Step) -> None:
    """Begin a search in a folder: both files, or none of them."""
    try:
        write_json(folder / SETTINGS, to_json(settings))
        append_line(folder / PATH, to_json(first))
    except BaseException:
        for name in (PATH, SETTINGS):
            (folder / name).unlink(missing_ok=True)
        raise


def append(folder: Path, step: Step) -> None:
    """Add an iteration; it is on the disk when this returns."""
    append_line(folder / PATH, to_json(step), "the search can go on from there")


def _compare(found: SearchSettings, wanted: SearchSettings, folder: Path) -> None:
    """Raise for the first setting that differs, in words where the setting is a checksum."""
    for name, there, value in _differences(to_json(found), to_json(wanted)):
        if name == "fingerprint":
            other = found.model != wanted.model
            what = f"of the model {found.model}" if other else f"of {found.model} with other weights or settings"
        elif name == "tokens":
            what = f"on other tokens than {wanted.text.source} has now"
        else:
            what = f"with {name} {there!r}, not {value!r}"
        raise SelattnError(f"{folder} holds a search {what}: choose another --out, or delete the folder")


def _differences(
    found: Mapping[str, Any], wanted: Mapping[str, Any], where: str = ""
) -> Iterator[tuple[str, object, object]]:
    """Settings that differ, by name, and both values. What models and texts are called does not matter."""
    for name, value in wanted.items():
        there = found.get(name)
        if isinstance(value, dict) and isinstance(there, dict):
            yield from _differences(there, value, f"{where}{name}.")
        elif there != value and f"{where}{name}" not in ("model", "text.source"):
            yield f"{where}{name}", there, value
