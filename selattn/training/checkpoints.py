"""A run's checkpoints: which of them are whole, and which one a run goes on from.

    checkpoint-STEP/     the Trainer's own files, `progress.json`, and `whole.json` when all of it is there

A checkpoint counts only with `whole.json` in it, which is written last and names every file with its size and its
checksum; it is the first to go when a checkpoint is deleted. So neither a kill while writing nor one while deleting
leaves anything that would be loaded, and a file that has changed since is noticed before it is.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selattn.errors import SelattnError
from selattn.utils.files import to_disk, write_json

WHOLE, PROGRESS = "whole.json", "progress.json"
_PREFIX = "checkpoint-"


@dataclass(frozen=True)
class Choice:
    """Where a run goes on.

    Attributes:
        step: of the newest whole checkpoint; None if none has been written to its end yet.
        left_out: newer ones, and what is wrong with each.
    """

    step: int | None = None
    left_out: tuple[tuple[Path, str], ...] = ()


def checkpoint_path(run: Path, step: int) -> Path:
    """Where the Trainer puts the checkpoint of a step."""
    return run / f"{_PREFIX}{step}"


def checkpoints(run: Path) -> dict[int, Path]:
    """The checkpoints of a run by step, the oldest first, whole or not."""
    found = {}
    for path in run.glob(_PREFIX + "*"):
        step = path.name.removeprefix(_PREFIX)
        if step.isdecimal():
            found[int(step)] = path
    return dict(sorted(found.items()))


def seal(checkpoint: Path) -> None:
    """Declare a checkpoint whole: every file is on the disk, and is named with its size and its checksum."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    for file in files:
        to_disk(file)
    named = {file.relative_to(checkpoint).as_posix(): file for file in files}
    sizes = {name: file.stat().st_size for name, file in named.items()}
    checksums = {name: _checksum(file) for name, file in named.items()}
    write_json(checkpoint / WHOLE, {"files": sizes, "checksums": checksums})


def is_whole(checkpoint: Path) -> bool:
    """Whether everything is there, by the sizes: `damage` reads it all."""
    try:
        return _missing(checkpoint, _seal_of(checkpoint)) is None
    except ValueError:
        return False


def newest(run: Path) -> int | None:
    """The step of the newest whole checkpoint, by the sizes of its files."""
    return max((step for step, path in checkpoints(run).items() if is_whole(path)), default=None)


def choose(run: Path) -> Choice:
    """The newest checkpoint of which every byte is as it was written.

    Raises if there are none but damaged ones: to begin at step 0 would throw the work away, and say nothing.
    """
    left_out, damaged = [], False
    for step, path in reversed(checkpoints(run).items()):
        if not (path / WHOLE).exists():
            left_out.append((path, "it was not written to its end"))
            continue
        wrong = damage(path)
        if wrong is None:
            return Choice(step, tuple(left_out))
        left_out.append((path, wrong))
        damaged = True
    if damaged:
        each = ", ".join(f"{path.name} ({wrong})" for path, wrong in left_out)
        raise SelattnError(
            f"there is no whole checkpoint in {run}: {each}; put one back from a copy, or begin anew with --overwrite"
        )
    return Choice(None, tuple(left_out))


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, in words; None if nothing is. Everything is read."""
    try:
        sealed = _seal_of(checkpoint)
    except ValueError:
        return f"{WHOLE} is damaged"
    if missing := _missing(checkpoint, sealed):
        return missing
    for name in sealed["files"]:
        file = checkpoint / name
        if sealed["checksums"].get(name) != _checksum(file):
            return f"{name} has changed since it was written"
    return None


def delete(checkpoint: Path) -> None:
    """Remove a checkpoint; from the first moment on it is no longer whole."""
    (checkpoint / WHOLE).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def delete_old(run: Path, keep: int) -> None:
    """Leave the `keep` newest."""
    for path in list(checkpoints(run).values())[:-keep]:
        delete(path)


def delete_halves(run: Path) -> None:
    """Remove what was half written."""
    for path in checkpoints(run).values():
        if not (path / WHOLE).exists():
            delete(path)


def _seal_of(checkpoint: Path) -> dict[str, Any]:
    """What whole.json says; ValueError if there is none, or none that could be read."""
    try:
        found = json.loads((checkpoint / WHOLE).read_bytes())
    except OSError as error:
        raise ValueError(str(error)) from None
    if not isinstance(found, dict) or not isinstance(found.get("files"), dict):
        raise ValueError("no files are named")
    if not isinstance(found.get("checksums"), dict):
        raise ValueError("no checksums are named")
    return found


def _missing(checkpoint: Path, sealed: dict[str, Any]) -> str | None:
    for name, size in sealed["files"].items():
        try:
            found = (checkpoint / name).stat().st_size
        except OSError:
            return f"{name} is missing"
        if found != size:
            return f"{name} has {found} bytes, not {size}"
    return None


def _checksum(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
