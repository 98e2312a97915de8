"""How much memory there is to be had."""

from __future__ import annotations

import os
from pathlib import Path

_LIMITS = (  # of the container: the limit and what is used of it, for both versions of control groups
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


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


def _text(file: str) -> str:
    try:
        return Path(file).read_text()
    except OSError:
        return ""
