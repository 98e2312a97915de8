"""The compiled library under AddressSanitizer and UndefinedBehaviorSanitizer.

    make sanitize         # or: python -m tools.sanitize --count 300

Builds the library with both into a temporary folder, and runs the fuzz of the operator and the tests of its cache part
against it, with each instruction set that this machine has. The first error ends the run with the sanitizer's report.
"""

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLAGS = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
TARGETS = ("avx512", "avx2", "plain")
CACHE = ("tests/cache/test_native.py", "tests/cache/test_compiled.py", "tests/cache/test_rows.py")


def build(folder):
    """The library with the sanitizers, from what pyproject.toml says of the real one."""
    said = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"][0]
    flags = [flag for flag in said["extra-compile-args"] if not flag.startswith("-O")]
    to = Path(folder) / "sanitized.so"
    command = ["g++", "-shared", "-fPIC", *flags, *FLAGS, *said["sources"], *said["extra-link-args"], "-o", str(to)]
    subprocess.run(command, cwd=ROOT, check=True)
    return to


def inside(path, count, target):
    """In a process that has loaded the sanitizers: everything, with this library in place of the installed one."""
    import pytest

    from selattn.utils import native

    native._LIBRARY = ctypes.CDLL(path)
    native._LIBRARY.selattn_target.restype = ctypes.c_char_p
    if native.target() != target:
        print(f"this machine does not have {target}", flush=True)
        sys.exit(0)
    print(f"instruction set {target}", flush=True)
    from tests.ops import fuzz

    failed = fuzz.run_all(0, count)
    if failed == 0:
        failed = pytest.main(["-q", "-x", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist", *CACHE])
    sys.exit(int(failed > 0))


def main():
    """Build it, and run the examples in a process that has loaded the sanitizers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300, help="examples of the fuzz")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        inside(arguments.inside, arguments.count, os.environ["SELATTN_TARGET"])
    runtime = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        path = build(folder)
        for target in TARGETS:
            # Python itself is not built with it, so that it would report Python's own memory as leaks.
            environment = os.environ | {
                "LD_PRELOAD": runtime.stdout.strip(),
                "ASAN_OPTIONS": "detect_leaks=0",
                "UBSAN_OPTIONS": "print_stacktrace=1",
                "SELATTN_TARGET": target,
            }
            command = [
                sys.executable,
                "-m",
                "tools.sanitize",
                "--inside",
                str(path),
                "--count",
                str(arguments.count),
            ]
            if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
                sys.exit(f"not clean with {target}: the report is above")
    print("clean")


if __name__ == "__main__":
    main()
