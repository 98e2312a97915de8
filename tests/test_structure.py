"""What keeps the code easy to change: short commands, one place for each switch, docstrings that say something."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "selattn").rglob("*.py"))
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def test_commands_are_short():
    """A command parses and prints; what it does is a function of another room."""
    files = {file.name: len(file.read_text().splitlines()) for file in (ROOT / "selattn" / "cli").glob("*.py")}
    assert len(files) > 15
    assert {name: lines for name, lines in files.items() if lines > 150} == {}


@pytest.mark.parametrize("switch", ["protect_first", "protect_self"])
def test_a_switch_of_selection_stands_in_few_files(switch):
    """A new switch of `Selection` must not be a change of the whole project."""
    native = [file for kind in ("*.h", "*.cpp") for file in (ROOT / "csrc").rglob(kind)]
    named = [file.relative_to(ROOT) for file in [*SOURCES, *native] if re.search(switch, file.read_text())]
    assert 2 <= len(named) <= 8, named


def test_docstrings_say_more_than_three_words():
    short = []
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text())):
            text = ast.get_docstring(node) if isinstance(node, DEFINITIONS) else None
            if text is not None and len(text.split()) <= 3:
                short.append(f"{file.relative_to(ROOT)}:{node.lineno} {text!r}")
    assert short == []
