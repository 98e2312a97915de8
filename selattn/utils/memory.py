"""How much memory is free, and how freed memory is kept."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from selattn.errors import SelattnError
from selattn.utils.tables import byte_size

_LIMITS = (  # of the container: the limit and what is used of it, for both versions of control groups
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
# Of malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_BLOCK = 32 << 20  # bytes: the most that glibc lets stay in its heap
_KEPT = (1 << 31) - 1  # bytes: the most that an int can say


def available_memory() -> int:
    """Bytes of the machine's memory that a process can have now without driving others out."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    for limit, used in _LIMITS:
        if _text(limit).strip().isdecimal() and _text(used).strip().isdecimal():
            found.append(max(int(_text(limit)) - int(_text(used)), 0))
    return min(found)


def check_fits(needed: int, what: str, advice: str, free: int | None = None) -> None:
    """Raise if `what` needs more bytes, by a low estimate, than are free: the system would kill the process.

    Called before any work: the machine would fill up for minutes, and another process might be killed instead.
    """
    free = available_memory() if free is None else free
    if needed > free:
        raise SelattnError(f"{what} at least {byte_size(needed)} of memory, and {byte_size(free)} are free: {advice}")


def keep_freed_memory() -> bool:
    """Have malloc keep freed memory for the next tensor, in this process; returns whether it does.

    glibc gives large blocks back to the system, which has to clear them again when the next step asks for them.
    Settings of malloc in the environment come first.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))


def _text(file: str) -> str:
    try:
        return Path(file).read_text()
    except OSError:
        return ""
