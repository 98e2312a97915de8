"""The documents are true: their Python runs, their commands parse, their links lead somewhere; the tree is the tree."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from selattn.cli.main import build_parser

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
HUB = "HuggingFaceTB/SmolLM2-135M"
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_snippets_run(document, tmp_path, monkeypatch):
    """All ```python fences of a document, in order and in one namespace, as a reader would paste them.

    A folder of that name stands in for the model of the hub, with the architecture and random weights.
    """
    monkeypatch.chdir(tmp_path)
    if HUB in document.read_text():
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        stock = LlamaForCausalLM(LlamaConfig(vocab_size=8000, eos_token_id=None, **sizes))
        stock.save_pretrained(tmp_path / HUB)
        for file in (ROOT / "zoo/selective").glob("tokenizer*.json"):
            shutil.copy(file, tmp_path / HUB)
    text = document.read_text()
    namespace = {"__name__": document.stem}
    for fence in re.finditer(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        above = text.count("\n", 0, fence.start(1))  # so that a traceback names the line of the document
        exec(compile("\n" * above + fence.group(1), document, "exec"), namespace)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_are_understood(document):
    """The parser takes every `selattn ...` of the document's ```sh fences."""
    for fence in re.findall(r"^```sh\n(.*?)^```$", document.read_text(), flags=re.MULTILINE | re.DOTALL):
        for line in fence.replace("\\\n", " ").splitlines():
            if line.startswith("selattn "):
                build_parser().parse_args(shlex.split(line, comments=True)[1:])


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name
)
def test_links_lead_somewhere(document):
    for link in re.findall(r"\]\(([^)\s]+)\)", without_fences(document)):
        if not link.startswith("http"):
            file, _, anchor = link.partition("#")
            target = (document.parent / file).resolve() if file else document
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def without_fences(document):
    return re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(document):
    """The names that GitHub gives the headings of a document."""
    headings = re.findall(r"^#+ (.*)$", without_fences(document), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_short_and_has_an_example():
    assert "```python\n" in README
    assert README.count("\n") <= 180


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
