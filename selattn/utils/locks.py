"""One process at a time, by `filelock`: a claim is a lock on a small file, and goes with the process that holds it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from selattn.errors import SelattnError
from selattn.utils.files import writing

LOCK = ".lock"  # in a folder that is locked
_CANNOT_LOCK = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # some network disks


class Lock:
    """A claim that is taken when there is something to claim.

    Args:
        file: the lock file. It is there while the claim is held; a process that is killed leaves it behind, unlocked.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = FileLock(file, thread_local=False, fallback_to_soft=False, poll_interval=0.01)
        self.held = False

    def take(self, refusal: str | None = None) -> None:
        """Claim it. If another has it, raise `refusal`; with None wait for it."""
        if not self._take(wait=refusal is None):
            raise SelattnError(str(refusal))

    def take_if_free(self) -> bool:
        """Claim it unless another has it; whether it is claimed."""
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
                # Nobody can tell there whether another process is at work.
        self.held = True
        return True

    def close(self) -> None:
        """Let others have it."""
        if self.held:
            with suppress(OSError):  # of a folder that is gone
                self.file.unlink()  # while it is locked: one who waits sees that his file is gone, and makes a new one
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
