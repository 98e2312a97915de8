"""What keeps the code easy to change: one place for each switch."""

import re
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
