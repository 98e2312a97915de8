"""The docs site, as far as it can be tested without mkdocs: navigation, the names of the reference, the tutorials."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch
import yaml

import selattn
from tools import site, tutorials

ROOT = Path(__file__).parents[1]
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
NAV = list(site.pages(CONFIG["nav"]))
REFERENCE = [
    name
    for path in sorted((ROOT / "docs/reference").glob("*.md"))
    for name in re.findall(r"^::: (\S+)$", path.read_text(), flags=re.MULTILINE)
]


def test_the_navigation_names_files_that_exist_each_once():
    assert [page for page in NAV if not (ROOT / site.in_repository(page)).is_file()] == []
    assert len(NAV) == len(set(NAV))


def test_every_page_is_in_the_navigation():
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/reference").glob("*.md")]
    pages += [*(ROOT / "docs/tutorials").glob("*.py"), *(ROOT / "zoo").glob("*/README.md")]
    missing = {site.in_site(path.relative_to(ROOT).as_posix()) for path in pages} - set(NAV)
    assert missing == set(), "add it to `nav` in mkdocs.yml"


@pytest.mark.parametrize(
    "path", ["README.md", "docs/stock.md", "docs/tutorials/stock_model.py", "zoo/memory/README.md"]
)
def test_a_page_has_one_place_in_the_site(path):
    assert site.in_repository(site.in_site(path)) == path


def test_links_are_followed_out_of_docs_but_not_in_code():
    text = "[a](../Makefile) [b](https://x.org/y) [c](#d) [e](stock.md)\n```\n[f](../setup.py)\n```\n[g](../lab)"
    assert list(site.linked(text, "docs/page.md")) == ["Makefile", "lab"]


def test_the_reference_has_every_public_name():
    assert {f"selattn.{name}" for name in set(selattn.__all__) - {"__version__", "plot"}} <= set(REFERENCE)
    figures = [name for name in selattn.plot.__all__ if callable(getattr(selattn.plot, name))]
    assert {f"selattn.views.plot.{name}" for name in figures} <= set(REFERENCE)
    assert len(REFERENCE) == len(set(REFERENCE))


@pytest.mark.parametrize("name", REFERENCE)
def test_the_reference_names_what_is_there_and_has_a_docstring(name):
    home, _, name = name.rpartition(".")
    assert getattr(import_module(home), name).__doc__


@pytest.fixture
def undisturbed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


@pytest.mark.parametrize("path", sorted(tutorials.TUTORIALS.glob("*.py")), ids=lambda path: path.stem)
def test_a_tutorial_runs_and_becomes_a_page_and_a_notebook(path, undisturbed):
    done = tutorials.run(path)
    assert done[0].kind == "markdown"
    assert done[0].text.startswith("# ")
    assert any(cell.printed for cell in done)
    page, pictures = tutorials.markdown(done, path.stem)
    assert set(pictures) == set(re.findall(r"\]\(([\w-]+\.png)\)", page))
    assert all(picture.startswith(b"\x89PNG") for picture in pictures.values())
    for link in re.findall(r"\]\((?!http)([^)#]+)", "".join(cell.text for cell in done if cell.kind == "markdown")):
        assert (path.parent / link).is_file(), link
    written = json.loads(tutorials.notebook(done))["cells"]
    assert ["".join(cell["source"]) for cell in written] == [cell.text for cell in done]
    assert len({cell["id"] for cell in written}) == len(written)
    pictured = [output for cell in written for output in cell.get("outputs", ()) if "data" in output]
    assert len(pictured) == len(pictures)


def test_cells_of_a_script():
    source = "# %% [markdown]\n# # Title\n#\n# Text.\n\n# %%\nx = 2\nprint('a')\nx + 1\n\n# %%\nx = 5\n"
    markdown, code, last = tutorials.cells(source)
    assert markdown == tutorials.Cell("markdown", "# Title\n\nText.")
    assert (code.text, last.text) == ("x = 2\nprint('a')\nx + 1", "x = 5")
    space = {}
    assert tutorials._run(code, "c", space).printed == "a\n3\n"
    assert tutorials._run(last, "d", space).printed == ""
    assert space["x"] == 5


def test_notebooks_are_written_without_running(tmp_path):
    tutorials.main([str(tmp_path / "out"), "--clean"])
    names = {path.stem for path in tutorials.TUTORIALS.glob("*.py")}
    assert {path.stem for path in (tmp_path / "out").glob("*.ipynb")} == names
