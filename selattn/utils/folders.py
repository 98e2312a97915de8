"""Folders that are made whole or not at all, by one process at a time, and where those made on the way are kept."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from selattn.errors import FULL, CannotWriteError
from selattn.utils.files import to_disk, writing
from selattn.utils.locks import LOCK, locked

VARIABLE = "SELATTN_CACHE"


def cache_folder() -> Path:
    """Where token stores and trained tokenizers are kept: $SELATTN_CACHE, or else ~/.cache/selattn."""
    return Path(os.environ.get(VARIABLE) or "~/.cache/selattn").expanduser()


@contextmanager
def folders_for(folder: Path) -> Iterator[None]:
    """Make a folder and those above it; of those that it has made, the ones that end up empty are removed again."""
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

    Whatever goes wrong, an interrupt included, nothing is left behind. After a kill the half-filled folder stays, under
    a name that nobody reads, and the next attempt removes it. Of several processes that want the same folder one fills
    it and the others wait.

    Returns whether it was filled here; False means that it was there, or that another process has made it meanwhile.
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
            _remove(part)  # of a process that was killed: whoever has the lock is alone
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
