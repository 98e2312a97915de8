"""Files and folders that are written whole or not at all, by one process at a time; locks; JSON."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from selattn.errors import FULL, CannotWriteError, SelattnError

VARIABLE = "SELATTN_CACHE"
LOCK = ".lock"  # in a folder that is locked
_CANNOT_LOCK = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # some network disks


@contextmanager
def writing(path: Path, advice: str = "") -> Iterator[None]:
    """Turn an error of the system at writing `path` into one line, which ends with `advice`."""
    try:
        yield
    except OSError as error:
        raise CannotWriteError(path, error, advice) from error


def check_ordinary(path: Path) -> None:
    """Raise for a device or a pipe: the new file would replace it, /dev/null included."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise SelattnError(f"cannot write {path}: it is no ordinary file; give the name of a file")


@contextmanager
def replacing(path: Path, advice: str = "") -> Iterator[Path]:
    """The name of a file to write, which then replaces `path`; folders above are made.

    After a power cut there is the old file or the new one, and after an error or an interrupt the old one. After a kill
    `NAME.part` may be left; the next attempt overwrites it.
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
    """The first number that is not finite, with its place: `models[0].loss is nan`."""
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


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise SelattnError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise SelattnError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise SelattnError(f"{path} must hold a JSON object, not a {type(found).__name__}")
    return found


def digest(files: Iterable[Path]) -> str:
    """A checksum of the contents of files, in their order; their names do not matter."""
    found = hashlib.blake2b(digest_size=16)
    for file in files:
        with file.open("rb") as opened:
            found.update(hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=16)).digest())
    return found.hexdigest()


def cache_folder() -> Path:
    """The folder of token stores and trained tokenizers: $SELATTN_CACHE, or else ~/.cache/selattn."""
    return Path(os.environ.get(VARIABLE) or "~/.cache/selattn").expanduser()


@contextmanager
def folders_for(folder: Path) -> Iterator[None]:
    """Make a folder and those above it; those that were made and end up empty are removed again."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):  # of one that is not empty
            for each in made:
                each.rmdir()


def make_folder(path: Path, fill: Callable[[Path], None]) -> bool:
    """Make the folder `path` by letting `fill` write into another one, which is then renamed.

    After an error or an interrupt nothing is left behind. After a kill the half-filled folder stays, under another
    name, and the next attempt removes it. Of several processes one fills the folder and the others wait.

    Returns whether it was filled here; False if it exists, or if another process has made it meanwhile.
    """
    part, lock = (path.with_name(path.name + end) for end in (".part", LOCK))
    elsewhere = f"set {VARIABLE} to a folder on another disk"
    if not path.absolute().is_relative_to(cache_folder().absolute()):
        elsewhere = "write elsewhere"
    advice = f"nothing is left of it; free some space, or {elsewhere}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            return False
        with locked(lock):
            if path.exists():  # another process has made it meanwhile
                return False
            _remove(part)  # of a process that was killed: the lock is held here
            part.mkdir()
            try:
                fill(part)
                for file in part.iterdir():
                    to_disk(file)
                to_disk(part)
                os.rename(part, path)
                to_disk(path.parent)
            except BaseException:
                _remove(part)
                raise
    except OSError as error:
        raise CannotWriteError(path, error, advice if error.errno in FULL else "") from error
    return True


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class Lock:
    """A lock file, which is there while the lock is held; a killed process leaves it behind, unlocked."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = FileLock(file, thread_local=False, fallback_to_soft=False, poll_interval=0.01)
        self.held = False

    def take(self, refusal: str | None = None) -> None:
        """Take it. If another process has it, raise `refusal`; with None wait for it."""
        if not self._take(wait=refusal is None):
            raise SelattnError(str(refusal))

    def take_if_free(self) -> bool:
        """Take it unless another process has it; returns whether it was taken."""
        return self._take(wait=False)

    def _take(self, wait: bool) -> bool:
        with writing(self.file):
            try:
                self._lock.acquire(blocking=wait)
            except Timeout:
                return False
            except OSError as error:
                if error.errno not in _CANNOT_LOCK:
                    raise
                # Such a disk has no locks.
        self.held = True
        return True

    def close(self) -> None:
        """Release it."""
        if self.held:
            with suppress(OSError):  # of a folder that is gone
                self.file.unlink()  # while locked: a waiting process sees that it is gone, and makes a new one
            self._lock.release()
            self.held = False


@contextmanager
def locked(file: Path, refusal: str | None = None) -> Iterator[None]:
    """Hold a lock file meanwhile. If another process has it, raise `refusal`; with None wait for it."""
    lock = Lock(file)
    lock.take(refusal)
    try:
        yield
    finally:
        lock.close()
