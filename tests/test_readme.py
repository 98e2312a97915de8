"""The documents are true: their Python runs, and the README's tree is the tree."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_snippets_run(document, tmp_path, monkeypatch):
    """All ```python fences of a document, in order and in one namespace, as a reader would paste them."""
    monkeypatch.chdir(tmp_path)
    text = document.read_text()
    namespace = {"__name__": document.stem}
    for fence in re.finditer(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        above = text.count("\n", 0, fence.start(1))  # so that a traceback names the line of the document
        exec(compile("\n" * above + fence.group(1), document, "exec"), namespace)


def test_the_readme_has_an_example():
    assert "```python\n" in README


def tree():
    """The folders of the README's tree as paths; two spaces of indentation are one level."""
    (block,) = re.findall(r"^```text\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    path, folders = [], {}
    for line in block.splitlines():
        indent, name, description = re.fullmatch(r"( *)([\w.]+)/ +(.+)", line).groups()
        path[len(indent) // 2 :] = [name]
        folders["/".join(path)] = description
    return folders


def test_every_folder_in_the_tree_exists():
    assert [folder for folder in tree() if not (ROOT / folder).is_dir()] == []


def test_every_folder_is_in_the_tree():
    packages = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "selattn").glob("*/__init__.py")}
    others = {
        name
        for name in ("benchmarks", "csrc", "docs", "examples", "results", "tests", "tools", "zoo")
        if (ROOT / name).is_dir()
    }
    assert {"selattn", *packages, *others} <= set(tree())
