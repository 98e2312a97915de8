"""Files that are written whole or not at all, by one process at a time, and where those made on the way are kept."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from selattn.errors import SelattnError

VARIABLE = "SELATTN_CACHE"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def cache_folder() -> Path:
    """Where token stores and trained tokenizers are kept: $SELATTN_CACHE, or else ~/.cache/selattn."""
    return Path(os.environ.get(VARIABLE) or "~/.cache/selattn").expanduser()


@contextmanager
def alone_with(path: Path, refusal: str) -> Iterator[None]:
    """One process at a time with a file or folder that exists; the claim goes with the process, however that ends."""
    try:
        lock = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise _one_line(path, error) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SelattnError(refusal) from None
        if not _same(lock, path):  # who had it has just removed it, and another may have made it anew
            raise SelattnError(refusal)
        yield
    finally:
        os.close(lock)


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
                _flush(file)
            _flush(part)
            os.rename(part, path)
            _flush(path.parent)
        except BaseException:
            _remove(part)
            raise
        finally:
            os.close(lock)
    except OSError as error:
        raise _one_line(path, error) from error
    return True


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


def _flush(path: Path) -> None:
    """To the disk, so that after a power cut there is no complete name for incomplete bytes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
