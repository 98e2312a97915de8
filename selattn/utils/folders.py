"""Files that are written whole or not at all, by one process at a time, and where those made on the way are kept."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from selattn.errors import SelattnError

VARIABLE = "SELATTN_CACHE"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def cache_folder() -> Path:
    """Where token stores and trained tokenizers are kept: $SELATTN_CACHE, or else ~/.cache/selattn."""
    return Path(os.environ.get(VARIABLE) or "~/.cache/selattn").expanduser()


@contextmanager
def folders_for(folder: Path) -> Iterator[None]:
    """Make a folder and those above it; of those that it has made, the ones that end up empty are removed again."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _one_line(folder, error) from None
    try:
        yield
    finally:
        with suppress(OSError):  # of one that is not empty
            for each in made:
                each.rmdir()


@contextmanager
def alone_with(path: Path, refusal: str, make: bool = False) -> Iterator[Callable[[], bool]]:
    """One process at a time with a file or folder; the claim goes with the process, however that ends.

    Args:
        path: a file or folder that exists.
        refusal: what is said if another process has it.
        make: make an empty file if there is none.

    Yields a function that tells whether the name still stands for what was claimed: once that has been removed, another
    process may have made a file of its own, which is not ours to touch.
    """
    while True:
        try:
            lock = os.open(path, os.O_RDONLY | (os.O_CREAT if make else 0), 0o666)
        except OSError as error:
            raise _one_line(path, error) from None
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SelattnError(refusal) from None
            if _same(lock, path):
                yield partial(_same, lock, path)
                return
            if not make:
                raise SelattnError(refusal)
        finally:
            os.close(lock)
        # Who had the file has just removed it: there is a place for another.


def make_folder(path: Path, fill: Callable[[Path], None]) -> bool:
    """Make the folder `path` by letting `fill` write into another one, which is then renamed.

    Whatever goes wrong, an interrupt included, nothing is left behind. After a kill the half-filled folder stays, under
    a name that nobody reads, and the next attempt removes it. Of several processes that want the same folder one fills
    it and the others wait.

    Returns whether it was filled here; False means that it was there, or that another process has made it meanwhile.
    """
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _lock(part, path)
        if lock is None:
            return False
        try:
            for old in part.iterdir():  # of a process that was killed: whoever has the lock is alone
                _remove(old)
            fill(part)
            for file in part.iterdir():
                to_disk(file)
            to_disk(part)
            os.rename(part, path)
            to_disk(path.parent)
        except BaseException:
            _remove(part)
            raise
        finally:
            os.close(lock)
    except OSError as error:
        raise _one_line(path, error) from error
    return True


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    half = path.with_name(path.name + ".part")
    try:
        half.write_text(json.dumps(content, indent=2) + "\n")
        to_disk(half)
        os.replace(half, path)
        to_disk(path.parent)
    finally:
        half.unlink(missing_ok=True)


def to_disk(path: Path) -> None:
    """To the disk, so that after a power cut there is no complete name for incomplete bytes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(part: Path, path: Path) -> int | None:
    """A lock on the folder `part` itself, made if need be; None once `path` exists. The lock goes with the process."""
    while not path.exists():
        with suppress(FileExistsError):  # Path.mkdir(exist_ok=True) fails where another removes it at the same moment
            part.mkdir()
        try:
            lock = os.open(part, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # another process has just finished, or failed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _same(lock, part):
                if not path.exists():
                    return lock
                _remove(part)  # another has finished between our first look and our mkdir: ours is not needed
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
    return None


def _same(descriptor: int, path: Path) -> bool:
    """Whether what is open still has that name: while one waits for its lock, it may be renamed or removed."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _one_line(path: Path, error: OSError) -> SelattnError:
    if error.errno in _FULL:
        return SelattnError(
            f"the disk is full: {path} was not written, and nothing is left of it; "
            f"free some space, or set {VARIABLE} to a folder on another disk"
        )
    return SelattnError(f"cannot write {path}: {error.strerror or error}")
