"""Text that every Python has: its language reference (`pydoc_data`) and the standard library's docstrings.

It needs no network and no download, so it is what the quick examples train on. Modules are parsed, never imported.
"""

from __future__ import annotations

import ast
import inspect
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# No documentation of the library: its own tests, an editor, a converter with Python 2 in it, tables of characters,
# what the user installed, and the reference itself, which is read as topics.
_SKIPPED = {"test", "tests", "idle_test", "idlelib", "lib2to3", "encodings", "site-packages", "dist-packages"}
_SKIPPED |= {"__pycache__", "pydoc_data", "turtledemo"}
_Named = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def embedded_documents() -> Iterator[str]:
    """One document for each topic of the reference, then one for each module that has docstrings, sorted by name."""
    from pydoc_data.topics import topics

    for _, text in sorted(topics.items()):
        yield text.strip()
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if not _SKIPPED & set(place.parts):
            text = _docstrings(path, ".".join(place.with_suffix("").parts).removesuffix(".__init__"))
            if text:
                yield text


def _docstrings(path: Path, module: str) -> str:
    """All docstrings of a module, each below the first line of what it documents; "" if there are none."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, OSError):
        return ""  # some installations keep files that are not Python 3, or cannot be read
    parts = list(_walk(tree, f"module {module}"))
    return "\n\n".join(parts)


def _walk(node: ast.Module | _Named, title: str) -> Iterator[str]:
    docstring = ast.get_docstring(node, clean=False)
    if docstring and docstring.strip():
        # Surrogates occur in a few docstrings, and no encoding has them.
        text = inspect.cleandoc(docstring).encode("utf-8", "replace").decode("utf-8")
        yield f"{title}\n{text}"
    for child in node.body:
        if isinstance(child, _Named):
            yield from _walk(child, _title(child))


def _title(node: _Named) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}"
    return f"def {node.name}({ast.unparse(node.args)})"
