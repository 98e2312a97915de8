"""Records: small JSON files that say what was measured, by which command, with which versions, on which machine."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from selattn.errors import SelattnError, shortened
from selattn.utils.files import check_ordinary, write_json
from selattn.utils.typed import KindError, MissingError, from_json, to_json

T = TypeVar("T")

# Every dependency of the package, and of its `eval` and `gpu` extras.
PACKAGES = (
    *("torch", "transformers", "accelerate", "safetensors", "sentencepiece", "datasets", "matplotlib"),
    *("rich", "tensorboard", "numpy", "filelock", "lm-eval", "triton"),
)

# Fields of records that may hold paths, also inside words such as `FIELD=PATH` and `MODEL@PATH`.
PATHS = ("data", "model", "record", "search", "set", "settings", "skip", "source", "teacher", "text", "texts", "until")
_ABSOLUTE = re.compile(r"(?:^|(?<=[=@,:]))/(?!/)[^=@,:\n]*")

# The code that decides a result; `revision` says whether any of it differs from its commit.
CODE = ("selattn", "csrc", "benchmarks", "pyproject.toml", "setup.py")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The beginning of every record."""

    command: str  # the command line, with portable paths
    date: str  # UTC
    seed: int | list[int | None] | None  # or seeds, where several make one record
    commit: str | None = None  # None outside a checkout, and in early records
    dirty: bool | None = None  # whether the code differed from that commit
    versions: dict[str, str]
    machine: Mapping[str, str | int | float | bool | None]


class Revision(TypedDict):
    """The code that runs."""

    commit: str | None
    dirty: bool | None


def versions() -> dict[str, str]:
    """The version of everything that can change a result; read from metadata, nothing is imported for it."""
    return {"python": platform.python_version(), **{name: version_of(name) for name in ("selattn", *PACKAGES)}}


def version_of(package: str) -> str:
    """The installed version of a package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def machine() -> dict[str, str | int | bool]:
    """What the numbers were measured on."""
    import torch

    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "threads between operators": torch.get_num_interop_threads(),
        "cuda": torch.cuda.is_available(),
    }


@cache
def revision() -> Revision:
    """The git commit of the code that runs, and whether that code has changed since; None outside a checkout.

    Only `CODE` counts, so that writing one record does not make the next one dirty. Asked once: the code that was
    loaded does not change when the checkout does.
    """
    root = Path(__file__).parents[2]

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # A package in the environment of another project lies in that project's checkout, but is no part of it.
    ours = git("ls-files", "--error-unmatch", "selattn/utils/records.py")
    commit = None if ours is None else git("rev-parse", "HEAD")
    changed = None if commit is None else git("status", "--porcelain", "--untracked-files=all", "--", *CODE)
    return {"commit": commit, "dirty": None if changed is None else bool(changed)}


def check_output(path: Path | None) -> None:
    """Raise if a file cannot be written there, as far as can be told: before long work rather than after it."""
    if path is None:
        return
    check_parents(path)
    if not path.name or path.is_dir():
        raise SelattnError(f"cannot write {path}: it is a folder; give the name of a file")
    check_ordinary(path)


def check_parents(path: Path) -> None:
    """Raise if the folders above do not allow a file or folder there."""
    try:
        above = next(folder for folder in path.absolute().parents if folder.exists())
    except OSError as error:
        raise SelattnError(f"cannot write {path}: {error.strerror}") from None
    if not above.is_dir():
        raise SelattnError(f"cannot write {path}: {above} is not a folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise SelattnError(f"cannot write {path}: you may not write in {above}")


def check_folder(folder: Path) -> None:
    """Raise if files cannot be written into a folder, which is made if need be."""
    check_parents(folder)
    if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
        raise SelattnError(f"cannot write {folder}: you may not write in it")


def check_new_folder(folder: Path) -> None:
    """Raise if a folder cannot be made there: it exists already, or what is above it is no folder."""
    check_parents(folder)
    if folder.exists():
        raise SelattnError(f"{folder} exists already: delete it, or choose another folder")


def write_record(path: str | Path, body: object, seed: int | Sequence[int | None] | None) -> Path:
    """Write `body`, a dataclass or a dict, with the command, seed, commit, versions and machine around it."""
    path = Path(path)
    check_output(path)
    write_json(path, {**to_json(provenance(seed)), **portable_fields(to_json(body))})
    return path


def portable(word: str) -> str:
    """A word of a command with its absolute paths made relative to the working directory, or cut to the last name."""

    def shown(match: re.Match[str]) -> str:
        path = Path(match[0])
        with contextlib.suppress(ValueError):
            return str(path.relative_to(Path.cwd()))
        # The model of a run lies in the run's folder, which is what tells it from others.
        return str(Path(path.parent.name, path.name)) if path.name == "model" else path.name or match[0]

    return _ABSOLUTE.sub(shown, word)


def portable_fields(body: Any) -> Any:
    """The same JSON with the paths in the fields `PATHS` made portable."""
    if isinstance(body, list):
        return [portable_fields(each) for each in body]
    if not isinstance(body, dict):
        return body
    return {name: (_portable_words if name in PATHS else portable_fields)(value) for name, value in body.items()}


def _portable_words(value: Any) -> Any:
    if isinstance(value, str):
        return portable(value)
    if isinstance(value, list):
        return [portable(each) if isinstance(each, str) else portable_fields(each) for each in value]
    if isinstance(value, dict):
        value = {name: portable(each) if isinstance(each, str) else each for name, each in value.items()}
    return portable_fields(value)


def provenance(seed: int | Sequence[int | None] | None) -> Provenance:
    """The beginning of a record that this process writes."""
    return Provenance(
        command=shlex.join(map(portable, command_line())),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seed=list(seed) if isinstance(seed, Sequence) else seed,
        **revision(),
        versions=versions(),
        machine=machine(),
    )


def read_record(path: str | Path) -> dict[str, Any]:
    """The JSON that `write_record` wrote."""
    try:
        found = json.loads(Path(path).read_text())
    except OSError as error:
        raise SelattnError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        found = None
    if not isinstance(found, dict) or "versions" not in found:
        raise SelattnError(f"{path} is not a record")
    return found


def read_body(path: str | Path, kind: type[T]) -> T:
    """The dataclass that `write_record` wrote; raises if the record is of another kind."""
    return as_body(read_record(path), kind, path)


def as_body(record: Mapping[str, Any], kind: type[T], path: str | Path = "the record") -> T:
    """The dataclass of a record that was read; `path` stands in messages."""
    try:
        return from_json(kind, record)
    except SelattnError as error:
        raise SelattnError(f"{path}: {error}") from None
    except MissingError as error:
        where = f" in {error.place}" if error.place else ""
        raise SelattnError(f"{path} lacks {error.field!r}{where}: {_written_by(record)}") from None
    except KindError as error:
        raise SelattnError(f"{path}: {error}; {_written_by(record)}") from None


def _written_by(record: Mapping[str, Any]) -> str:
    return f"it was written by '{shortened(record.get('command', 'something unknown'))}'"


def command_line() -> list[str]:
    """The command line without this machine's folders."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return ["python", "-m", program.parent.name, *sys.argv[1:]]
    if program.suffix != ".py":
        return [program.name, *sys.argv[1:]]
    try:
        shown = program.resolve().relative_to(Path.cwd())
    except ValueError:
        shown = Path(program.name)
    return ["python", str(shown), *sys.argv[1:]]


def _processor() -> str:
    """The processor's name, which Linux has in /proc only."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
