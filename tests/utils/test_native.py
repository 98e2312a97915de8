"""The compiled library: found in the package's own folder and nowhere else, or a line that says why there is none."""

import subprocess
import sys

import pytest

from selattn.cli.main import main
from selattn.errors import SelattnError
from selattn.utils import native


def test_where_it_was_built():
    assert native.load() is not None
    assert native.library() is not None
    assert native.unavailable() is None
    assert native.target() in ("avx512", "avx2", "plain")


def test_the_reason_that_the_build_left_is_told(tmp_path, monkeypatch, capsys):
    (tmp_path / native.REASON).write_text("g++ was not found; do this\n")
    assert native.load(tmp_path) is None
    assert native.why_missing(tmp_path) == "it was not built: g++ was not found; do this"
    monkeypatch.setattr(native, "_LIBRARY", None)
    monkeypatch.setattr(native, "_MISSING", native.why_missing(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["info"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "it was not built: g++ was not found; do" in line]
    assert len(rows) == 2  # the backend, and the library


def test_a_copy_that_was_never_installed(tmp_path):
    assert native.why_missing(tmp_path / "selattn") == (
        f"it was not built: this copy of selattn was never installed; run `pip install -e .` in {tmp_path}"
    )


def test_a_library_without_openmp(monkeypatch):
    def load(path):
        raise OSError("libgomp.so.1: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(native.ctypes, "CDLL", load)
    with pytest.raises(SelattnError, match=r"^it cannot be loaded: libgomp\.so\.1: .*; install libgomp \(libgomp1 on"):
        native.load()


def test_a_library_that_cannot_be_loaded(tmp_path):
    (tmp_path / native.NAME).write_bytes(b"no library")
    with pytest.raises(SelattnError, match=r"^it cannot be loaded: .*; install selattn again, on this machine$"):
        native.load(tmp_path)


def test_the_library_of_another_copy_is_not_taken(tmp_path):
    """An editable installation answers for `selattn._native` even where another copy of selattn was imported."""
    package = tmp_path / "selattn"
    (package / "utils").mkdir(parents=True)
    for name in ("utils/native.py", "errors.py"):
        (package / name).write_text((native.PACKAGE / name).read_text())
    for name in ("utils/__init__.py", "__init__.py"):
        (package / name).touch()
    code = (
        "import sys, importlib.machinery as m\n"
        "class Finder:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'selattn._native':\n"
        f"            return m.PathFinder.find_spec(name, [{str(native.PACKAGE)!r}])\n"
        "sys.meta_path.append(Finder)\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from selattn.utils import native\n"
        f"assert str(native.PACKAGE) == {str(package)!r}\n"
        "print(native.unavailable())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "was never installed" in done.stdout
