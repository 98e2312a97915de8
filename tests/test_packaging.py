"""What is installed: the type marker, and one version everywhere."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import yaml

import selattn

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_one_version_everywhere():
    version = PYPROJECT["project"]["version"]
    assert selattn.__version__ == version
    assert metadata.version("selattn") == version
    assert str(yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]) == version
    released = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert released[0] == version


def test_type_marker_is_in_the_package():
    assert (ROOT / "selattn" / "py.typed").is_file()
    assert "py.typed" in PYPROJECT["tool"]["setuptools"]["package-data"]["selattn"]


def test_every_folder_with_code_is_a_package():
    """A folder without `__init__.py` would be left out of the wheel, and nobody here would notice."""
    assert PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"] == ["selattn", "selattn.*"]
    folders = {path.parent for path in (ROOT / "selattn").rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_no_torch_newer_than_the_tested_one():
    assert "torch>=2.9,<2.14" in PYPROJECT["project"]["dependencies"]
