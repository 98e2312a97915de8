"""The C++ as `make lint` wants it: formatted as .clang-format says, and compiled without a warning.

python -m tools.lint_cpp   # `clang-format -i FILE` formats
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = [
    path for folder in ("csrc", "tools") for ending in ("h", "cpp") for path in (ROOT / folder).rglob(f"*.{ending}")
]
# Optimized a little: some warnings, such as of what may not have been set, come only with that.
WARNINGS = ["-O1", "-Wall", "-Wextra", "-Werror"]


def main():
    """Format and compile; an exit code."""
    beside = Path(sysconfig.get_path("scripts"), "clang-format")
    clang_format = str(beside) if beside.is_file() else "clang-format"
    done = [subprocess.run([clang_format, "--dry-run", "-Werror", *map(str, sorted(FILES))], cwd=ROOT).returncode]
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    if shutil.which(compiler[0]):
        said = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"][0]
        flags = [flag for flag in said["extra-compile-args"] if not flag.startswith("-O")]
        command = [*compiler, "-c", *flags, *WARNINGS, *said["sources"], "-o", os.devnull]
        done.append(subprocess.run(command, cwd=ROOT).returncode)
    else:
        print(f"{compiler[0]} was not found: nobody has looked for warnings in csrc/", file=sys.stderr)
    return int(any(done))


if __name__ == "__main__":
    sys.exit(main())
