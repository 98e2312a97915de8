"""What keeps the code easy to change, one place for each switch; and nothing of the machine that wrote a file."""

import re
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "selattn").rglob("*.py"))


@pytest.mark.parametrize("switch", ["protect_first", "protect_self"])
def test_a_switch_of_selection_stands_in_few_files(switch):
    """A new switch of `Selection` must not be a change of the whole project."""
    native = [file for kind in ("*.h", "*.cpp") for file in (ROOT / "csrc").rglob(kind)]
    named = [file.relative_to(ROOT) for file in [*SOURCES, *native] if re.search(switch, file.read_text())]
    assert 2 <= len(named) <= 8, named


IN_A_RECORD = re.compile(r"(?<![\w.~/:+<-])/[\w.-]+/[\w.-]")
BELOW_A_HOME = re.compile(r"(?<![\w.~/:-])/(?:home|root|Users|mnt|media|var/folders)/\w")
TREE = ("*.md", ".ci/*", "csrc", "docs", "examples", "lab", "results", "selattn", "tests", "tools", "benchmarks", "zoo")


def texts():
    """Every file of the tree that is text, by its path."""
    paths = [path for name in TREE for path in ROOT.glob(name)]
    for path in [each for top in paths for each in ([top] if top.is_file() else sorted(top.rglob("*")))]:
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".so", ".png", ".safetensors"):
            yield path.relative_to(ROOT).as_posix(), path.read_text(errors="replace")


def test_no_file_names_a_folder_of_the_machine_that_wrote_it():
    found, here = [], [str(folder) for folder in (ROOT, ROOT.parent, Path.home()) if len(folder.parts) > 1]
    for name, text in texts():
        record = name.startswith(("results/", "docs/images/records/", "zoo/")) and name.endswith(".json")
        for match in [*(IN_A_RECORD if record else BELOW_A_HOME).finditer(text)]:
            found.append(f"{name}: {text[match.start() : match.start() + 60]!r}")
        found += [f"{name}: {each}" for each in here if re.search(rf"(?<![\w.]){re.escape(each)}/\w", text)]
    assert found == []


def test_such_a_folder_would_be_seen():
    home = "/" + "home/me"
    for path in (f"{tempfile.gettempdir()}/a/b", "/store/models/1", f"{home}/a"):
        assert IN_A_RECORD.search(f'"command": "selattn eval {path}",')
    assert BELOW_A_HOME.search(f"--store {home}")
    assert not IN_A_RECORD.search("https://example.org/a zoo:a/b <//s> results/a.json ../x/y")
