"""Errors that are the fault of the machine or of what is read, told from our own mistakes.

Bad input that a command knows of is a `SelattnError`. This is the net below: a full disk, a name that no file can have,
a size that no memory holds. Everything else, and so every mistake of ours, keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import re

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Not ENOENT and its like: whether a file is there is looked at first, so a file that is missing later is a mistake.
SYSTEM = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.EIO, errno.ESTALE),
    *(errno.EMFILE, errno.ENFILE, errno.EBUSY, errno.ETXTBSY, errno.ENOMEM, errno.EAGAIN, errno.ENXIO, errno.ENODEV),
)
# How torch says it, which has no exception of its own for a CPU; the last is of a size beyond all memory.
_NO_MEMORY = re.compile(
    r"can't allocate memory|not enough memory|out of memory|bad_alloc|Storage size calculation overflowed"
)
_BYTES = re.compile(r"tried to allocate (\d+) bytes")
_OS_ERROR = re.compile(r"\(os error (\d+)\)")  # how libraries in Rust, safetensors and tokenizers, say what failed


def fault(error: BaseException) -> str | None:
    """One line on an error that is not ours; None if it may be."""
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error))):
        asked = _BYTES.search(str(error))
        size = f" for {int(asked[1]):,} bytes at once" if asked else ""
        return f"there is not enough memory{size}: choose smaller sizes"
    if isinstance(error, UnicodeDecodeError):
        return f"what is read is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}"
    if isinstance(error, UnicodeEncodeError):
        return f"a name or a text is not UTF-8: {error.object[error.start : error.end]!a}"
    if isinstance(error, OSError):
        return _system(error.errno, None if error.filename is None else str(error.filename))
    inside = _OS_ERROR.search(str(error))
    return _system(int(inside[1]), None) if inside else None


def _system(number: int | None, file: str | None) -> str | None:
    if number in FULL:
        return f"cannot write {file or 'all of it'}: {os.strerror(number)}; free some space, or write elsewhere"
    if number in SYSTEM:
        return f"cannot use {file}: {os.strerror(number)}" if file else f"the system refuses: {os.strerror(number)}"
    return None
