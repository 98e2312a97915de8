"""Files that are written whole or not at all, and what the system says if they cannot be."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from selattn.errors import CannotWriteError, SelattnError


@contextmanager
def writing(path: Path, advice: str = "") -> Iterator[None]:
    """Turn what the system says against writing `path` into one line; `advice` is what the user can do."""
    try:
        yield
    except OSError as error:
        raise CannotWriteError(path, error, advice) from error


def check_ordinary(path: Path) -> None:
    """Raise for a device or a pipe: what is written whole takes the place of what was there, /dev/null included."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise SelattnError(f"cannot write {path}: it is no ordinary file; give the name of a file")


@contextmanager
def replacing(path: Path, advice: str = "") -> Iterator[Path]:
    """The name of a file to write, which then takes the place of `path`; folders above are made.

    After a power cut there is the old file or the new one, and after an error, an interrupt included, the old one.
    After a kill `NAME.part` may be left; the next attempt overwrites it.
    """
    part = path.with_name(path.name + ".part")
    with writing(path, advice):
        check_ordinary(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield part
            to_disk(part)
            os.replace(part, path)
            to_disk(path.parent)
        finally:
            with suppress(OSError):
                part.unlink()


def write_bytes(path: Path, data: bytes, advice: str = "") -> None:
    """Write a file whole or not at all."""
    with replacing(path, advice) as part:
        part.write_bytes(data)


def write_text(path: Path, text: str, advice: str = "") -> None:
    """Write a text in UTF-8, whole or not at all."""
    write_bytes(path, text.encode(), advice)


def write_json(path: Path, content: object, advice: str = "") -> None:
    """Write JSON that people can read, whole or not at all."""
    if (place := _not_finite(content)) is not None:
        raise SelattnError(f"cannot write {path}: {place}, which is no number of JSON")
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n", advice)


def _not_finite(content: object, at: str = "") -> str | None:
    """The first number that is none, by its place: `models[0].loss is nan`."""
    if isinstance(content, float) and not math.isfinite(content):
        return f"{at or 'it'} is {content}"
    parts: list[tuple[str, object]] = []
    if isinstance(content, Mapping):
        parts = [(f"{at}.{key}" if at else str(key), value) for key, value in content.items()]
    elif isinstance(content, list | tuple):
        parts = [(f"{at}[{i}]", value) for i, value in enumerate(content)]
    return next((found for where, part in parts if (found := _not_finite(part, where)) is not None), None)


def to_disk(path: Path) -> None:
    """Wait until a file or folder is on the disk: after a power cut no complete name stands for incomplete bytes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
