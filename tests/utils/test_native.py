"""The compiled library: found in the package's own folder and nowhere else, or a line that says why there is none."""

import struct as bytes_of
import subprocess
import sys

import pytest
import torch

from selattn.cli.main import main
from selattn.errors import SelattnError
from selattn.utils import native
from selattn.utils.native import Struct, constant, struct


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


needs_library = pytest.mark.skipif(native.library() is None, reason="the library was not built")


@needs_library
@pytest.mark.parametrize("name", ["Problem", "Eviction", "Step"])
def test_a_struct_is_as_large_as_the_library_says(name):
    assert struct(name).size == constant(f"sizeof({name})") > 0
    assert {"B", "H", "G", "scale", "strength", "relu", "shift"} <= struct(name).fields.keys()


FIELDS = "int a\nstrides s\nreal b\npointer p\n"


def test_fields_are_set_by_name_wherever_they_stand():
    x = torch.zeros(2, 3, 4, 5)
    given = {"p": x, "b": 0.5, "s": x, "a": 7}
    assert Struct("Some", FIELDS).pack(**given) == bytes_of.pack("@q3qdP", 7, 60, 20, 5, 0.5, x.data_ptr())
    turned = Struct("Some", "".join(reversed(FIELDS.splitlines(keepends=True)))).pack(**given)
    assert turned == bytes_of.pack("@Pd3qq", x.data_ptr(), 0.5, 60, 20, 5, 7)


@pytest.mark.parametrize("change", [{"missing": "a"}, {"surplus": "z"}])
def test_a_forgotten_or_unknown_field_is_an_error(change):
    given = {"a": 1, "s": None, "b": 0.0, "p": None, change.get("surplus", "a"): 1}
    given.pop(change.get("missing"), None)
    with pytest.raises(TypeError, match="struct Some"):
        Struct("Some", FIELDS).pack(**given)
