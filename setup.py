"""What pyproject.toml cannot say: the zoo goes into wheels, and a library that could not be compiled leaves its reason.

The package works without the compiled library, only more slowly, so that a failed compilation does not stop an
installation. But pip hides what a build prints: the reason is written into the package, where `selattn info` finds it.
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
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import BaseError, CCompilerError

REASON = "_native_missing.txt"  # beside the library's place; selattn/utils/native.py reads it
AGAIN = "install selattn again (pip install --force-reinstall --no-deps --no-cache-dir ...)"


class BuildPy(build_py):
    """Python's files, and in a wheel zoo/ as selattn/zoo; an editable installation reads the repository's."""

    def run(self) -> None:
        if self.editable_mode:
            super().run()
            return
        to = Path(self.build_lib, "selattn")
        shutil.rmtree(to, ignore_errors=True)  # what an earlier build left there would be shipped, too
        super().run()
        models = [path.parent for path in sorted(Path("zoo").glob("*/config.json")) if path.parent.suffix != ".part"]
        if not models:
            raise BaseError("the models of zoo/ are missing: build from a whole repository, or from an sdist")
        for model in models:
            shutil.copytree(model, to / "zoo" / model.name)


class BuildExt(build_ext):
    """The compiled library, or the reason why there is none, never an old one."""

    def finalize_options(self) -> None:
        super().finalize_options()
        for ext in self.extensions:  # setuptools takes them literally, and would not see that a header has changed
            ext.depends = [str(path) for pattern in ext.depends for path in sorted(Path().glob(pattern))]

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


setup(cmdclass={"build_py": BuildPy, "build_ext": BuildExt})
