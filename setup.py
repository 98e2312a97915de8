"""What pyproject.toml cannot say: one wheel serves every Python, and a failed compilation leaves its reason.

The compiled library has a plain C interface, which ctypes reads: neither its name nor the wheel's has a Python in it.
The package works without the library, only more slowly, so that a failed compilation does not stop an installation. But
pip hides what a build prints: the reason is written into the package, where `selattn info` finds it.
"""

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import BaseError, CCompilerError

REASON = "_native_missing.txt"  # beside the library's place; selattn/utils/native.py reads it
AGAIN = "install selattn again (pip install --force-reinstall --no-deps --no-cache-dir ...)"


class BuildPy(build_py):
    """Python's files, and nothing of an earlier build."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib, "selattn"), ignore_errors=True)
        super().run()


class BdistWheel(bdist_wheel):
    """A wheel for every Python of a platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class BuildExt(build_ext):
    """The compiled library, or the reason why there is none, never an old one."""

    def finalize_options(self) -> None:
        super().finalize_options()
        for ext in self.extensions:  # setuptools takes them literally, and would not see that a header has changed
            ext.depends = [str(path) for pattern in ext.depends for path in sorted(Path().glob(pattern))]

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def run(self) -> None:
        os.environ["LC_ALL"] = "C"  # `reason` knows the compiler's English words
        self.reasons: dict[str, str] = {}
        super().run()
        for ext in self.extensions:
            places = [Path(self.build_lib, self.get_ext_filename(ext.name))]
            if self.inplace:
                places.append(Path(self.get_ext_fullpath(ext.name)))
            for place in places:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.with_name(REASON).unlink(missing_ok=True)
                if ext.name in self.reasons:
                    place.unlink(missing_ok=True)
                    place.with_name(REASON).write_text(self.reasons[ext.name] + "\n", encoding="utf-8")

    def build_extension(self, ext: Extension) -> None:
        said: list[str] = []
        try:
            with echoed_errors(said):
                super().build_extension(ext)
        except (CCompilerError, BaseError) as error:
            self.reasons[ext.name] = reason(error, said)
            line = "!" * 79
            print(
                f"\n{line}\n{ext.name} was not built: {self.reasons[ext.name]}\n{line}\n", file=sys.stderr, flush=True
            )


@contextlib.contextmanager
def echoed_errors(said: list[str]) -> Iterator[None]:
    """What is written to standard error meanwhile, by compilers too: appended to `said`, and shown at the end."""
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            said += file.read().decode(errors="replace").splitlines()
            print("\n".join(said), file=sys.stderr, flush=True)


def reason(error: BaseException, said: list[str]) -> str:
    """Why there is no library, and what to do: one line."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, FileNotFoundError | NotADirectoryError):
            return f"{cause.filename} was not found; install a C++ compiler (g++), then {AGAIN}"
        cause = cause.__cause__ or cause.__context__
    telling = [line for line in said if re.search(r"error:|cannot find|undefined reference", line)]
    first = " ".join((telling or [str(error)])[0].split())
    return f"{first}; `pip install -v` shows all that the compiler said, and when it is mended, {AGAIN}"


setup(cmdclass={"build_py": BuildPy, "build_ext": BuildExt, "bdist_wheel": BdistWheel})
