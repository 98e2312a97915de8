"""Each file of `interpreted/` in a process of its own, in which Triton's kernels run in Python.

Triton decides between interpreter and compiler when it is imported, so that both cannot be tested in one process.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT, FOLDER = Path(__file__).parents[3], Path(__file__).parent / "interpreted"
FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))
SLOW = [name for name in FILES if "mark.slow" in (FOLDER / name).read_text()]


def run(*arguments):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", FILES)
def test_in_the_interpreter(name):
    run(FOLDER / name)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", SLOW)
def test_in_the_interpreter_slowly(name):
    run(FOLDER / name, "-m", "slow")
