"""What is installed: one version everywhere, a whole sdist, a wheel of the package alone, and why one is missing."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import selattn
from selattn.errors import EXTRAS
from selattn.utils import native
from tools.install import FOLDERS, copy_source

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BUILD = "import sys, setuptools.build_meta as b; b.build_{}(sys.argv[1])"  # what pip calls; without a download here


def files(folder, *below):
    return {str(path.relative_to(folder)) for name in below for path in (folder / name).rglob("*") if path.is_file()}


def build(source, *command, **variables):
    done = subprocess.run(
        [sys.executable, *command], cwd=source, env=os.environ | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


def test_one_version_everywhere():
    version = PYPROJECT["project"]["version"]
    assert selattn.__version__ == version
    assert metadata.version("selattn") == version
    assert str(yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]) == version
    released = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert released[0] == version


def test_every_folder_with_code_is_a_package():
    """A folder without `__init__.py` would be left out of the wheel, and nobody here would notice."""
    assert PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"] == ["selattn", "selattn.*"]
    folders = {path.parent for path in (ROOT / "selattn").rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_help_of_make_lists_every_command():
    makefile = (ROOT / "Makefile").read_text()
    commands = re.search(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE).group(1).split()
    assert ["help", *re.findall(r'@echo "make ([\w-]+) ', makefile)] == commands


def test_the_tests_run_with_versions_that_an_installation_admits():
    """The package admits any newer torch; the Makefile's installations do not, since those may bring gigabytes."""
    wanted = [Requirement(text) for text in PYPROJECT["project"]["dependencies"]]
    assert [str(each) for each in wanted if not each.specifier.contains(metadata.version(each.name))] == []
    (torch,) = (each for each in wanted if each.name == "torch")
    assert str(torch.specifier) == ">=2.9"
    pinned = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] != "#"]
    assert "torch" in [each.name for each in pinned]
    assert [str(each) for each in pinned if not each.specifier.contains(metadata.version(each.name))] == []
    makefile = (ROOT / "Makefile").read_text()
    assert re.findall(r"\$\(BIN\).*(pip install.*)", makefile) == ["pip install --quiet -c constraints.txt"]


def test_every_extra_has_the_packages_that_a_message_says_it_has():
    extras = PYPROJECT["project"]["optional-dependencies"]
    held = {name: {Requirement(text).name.replace("-", "_") for text in texts} for name, texts in extras.items()}
    assert [package for package, extra in EXTRAS.items() if package not in held[extra]] == []
    (everything,) = (Requirement(text) for text in extras["all"])
    assert everything.extras == set(extras) - {"all", "docs", "test"}


def test_no_folder_of_the_project_is_forgotten():
    """A new one goes into MANIFEST.in, and into what is installed from when installing is tried."""
    grafted = re.findall(r"^graft (\S+)$", (ROOT / "MANIFEST.in").read_text(), re.MULTILINE)
    assert {*grafted, "selattn"} == set(FOLDERS)
    if (ROOT / ".git").exists():  # an sdist has none
        tracked = subprocess.run(["git", "ls-files", "*/*"], cwd=ROOT, capture_output=True, text=True, check=True)
        folders = {line.split("/")[0] for line in tracked.stdout.splitlines()}
        assert {name for name in folders if not name.startswith(".")} == set(FOLDERS)


def test_an_sdist_is_whole_and_a_wheel_from_it_has_the_package_alone(tmp_path):
    """No compiler here, so that it is quick; `make test-install` has one."""
    source = copy_source(tmp_path / "source")
    for path in source.glob("zoo/*/model.safetensors"):
        path.write_bytes(b"short, for speed")
    everything = files(source, ".")
    leftovers = {f"selattn/{native.NAME}", f"selattn/{native.REASON}", "csrc/x.so", "tests/x.pyc"}
    for name in leftovers:  # of an editable installation
        (source / name).write_text("left over")
    build(source, "-c", BUILD.format("sdist"), str(tmp_path))
    (packed,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    held = files(unpacked, ".")
    assert sorted(everything - held) == []
    assert sorted(held & leftovers) == []

    said = build(unpacked, "-c", BUILD.format("wheel"), str(tmp_path), PATH=os.devnull)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"selattn-{selattn.__version__}-py3-none-")
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if not name.startswith("selattn-")}
        reason = archive.read(f"selattn/{native.REASON}").decode()
    code = files(source, "selattn") - leftovers
    assert inside == code | {f"selattn/{native.REASON}"}
    assert "selattn/py.typed" in inside
    assert re.match(r"\S+ was not found; install a C\+\+ compiler .*\n$", reason)
    assert f"selattn._native was not built: {reason}" in said


@pytest.fixture
def small_source(tmp_path):
    """As much of the project as a build reads, with a library of one line."""
    source = tmp_path / "source"
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source)
    for name in ("selattn/__init__.py", "csrc/native.cpp"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).touch()
    return source


COMPILES = 'extern "C" int one() { return 1; }\n'
FAILURES = {
    "a compile error": (
        COMPILES + "int two() { return nowhere; }\n",
        {},
        r"csrc/native.cpp:2:\d+: error: .*nowhere.*; `pip",
    ),
    "a header that is not there": ('#include "none.h"\n', {}, r"csrc/native.cpp:1:\d+: fatal error: none.h: .*; `pip"),
    "a library that is not there": (COMPILES, {"LDFLAGS": "-lnowhere"}, r".*cannot find -lnowhere.*; `pip"),
    "no such compiler": (COMPILES, {"CC": "/no/cc", "CXX": "/no/c++"}, r"/no/c(c|\+\+) was not found; install a C\+\+"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failed_build_says_why(small_source, failure):
    code, variables, reason = FAILURES[failure]
    (small_source / "csrc/native.cpp").write_text(code)
    said = build(small_source, "setup.py", "build_ext", "--build-lib", "built", **variables)
    left = (small_source / "built/selattn" / native.REASON).read_text()
    assert re.match(reason, left)
    assert left.count("\n") == 1
    assert f"selattn._native was not built: {left}" in said


@pytest.mark.parametrize("where", ["selattn", "built/selattn"])
def test_a_failed_build_leaves_no_old_library_and_the_next_one_no_old_reason(small_source, where):
    command = ["setup.py", "build_ext", *(["--inplace"] if where == "selattn" else ["--build-lib", "built"])]
    library, left = small_source / where / native.NAME, small_source / where / native.REASON
    library.parent.mkdir(parents=True, exist_ok=True)
    library.write_text("of an earlier version")
    os.utime(library, (0, 0))
    (small_source / "csrc/native.cpp").write_text("#error no\n")
    build(small_source, *command)
    assert (library.exists(), left.exists()) == (False, True)
    (small_source / "csrc/native.cpp").write_text(COMPILES)
    build(small_source, *command)
    assert (library.exists(), left.exists()) == (True, False)


def test_a_changed_header_is_compiled_again(small_source):
    (small_source / "csrc/cache").mkdir()
    header = small_source / "csrc/cache/one.h"
    header.write_text(COMPILES)
    (small_source / "csrc/native.cpp").write_text('#include "cache/one.h"\n')
    command = ["setup.py", "build_ext", "--build-lib", "built"]
    build(small_source, *command)
    library = small_source / "built/selattn" / native.NAME
    before = library.stat().st_mtime_ns
    build(small_source, *command)
    assert library.stat().st_mtime_ns == before
    os.utime(header, ns=(before + 10**9, before + 10**9))
    build(small_source, *command)
    assert library.stat().st_mtime_ns > before


def test_nothing_of_an_earlier_build_is_shipped(small_source):
    command = ["setup.py", "build_py", "--build-lib", "built"]
    removed = small_source / "built/selattn/removed.py"
    removed.parent.mkdir(parents=True)
    removed.touch()
    build(small_source, *command)
    assert files(small_source, "built") == {"built/selattn/__init__.py"}
