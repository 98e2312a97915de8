"""Memory that is freed and kept: the next tensor finds it, and the system need not clear it again."""

import platform
import subprocess
import sys

import pytest

from selattn.utils.memory import available_memory, keep_freed_memory

# Page faults of ten tensors of 16 MB, made and dropped one after the other, when the heap has grown to what it needs.
FAULTS = """
import resource, sys, torch
from selattn.utils.memory import keep_freed_memory
kept = sys.argv[1] == "keep" and keep_freed_memory()
for _ in range(20):
    torch.ones(4 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(4 << 20)
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 10 * (16 << 20) // 4096


def faults(how, **environment):
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True, env={"PATH": "", **environment}
    )
    kept, count = done.stdout.split()
    return kept == "True", int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this is glibc's malloc")
def test_freed_memory_is_found_again():
    kept, count = faults("keep")
    assert kept
    assert count < PAGES / 20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this is glibc's malloc")
def test_the_environment_is_obeyed():
    kept, count = faults("keep", MALLOC_MMAP_THRESHOLD_="65536")
    assert not kept
    assert count > PAGES / 2


def test_where_malloc_is_another_nothing_happens(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert not keep_freed_memory()


def test_there_is_memory():
    assert 0 < available_memory() < 1 << 50
