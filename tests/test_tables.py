"""The tables of the documents are those that the records give, and `tools.tables --check` sees one that is not."""

import re
import shutil

import pytest

from tools.tables import BETWEEN, PAGES, ROOT, TABLES, main, written

README = (ROOT / "README.md").read_text()
RECORDS = ("attention", "conversion", "convert_pretrained", "decode", "decode_stock", "gpu_cost", "lm_comparison")
RECORDS += (
    "prune/memory-seed1",
    "prune/selective-seed2",
    "reproduce/laptop/efficiency",
    "search",
    "standard_attention",
)
RECORDS += ("stock_smollm2", "stock_stories260K", "t5", "tradeoff", "training_under_budgets", "zoo_attention")
COUNTS = ("gpu_compile", "mixture")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_no_page_is_stale(path):
    """`python -m tools.tables` writes it."""
    assert written(path.read_text()) == path.read_text()


def test_every_table_stands_on_a_page():
    assert {match["name"] for path in PAGES for match in BETWEEN.finditer(path.read_text())} == set(TABLES)


def test_another_digit_is_seen_and_put_right(tmp_path, capsys):
    (table,) = BETWEEN.finditer(README)
    digit = re.compile(r"\d").search(README, table.start("table"))
    page = tmp_path / "README.md"
    page.write_text(README[: digit.start()] + str((int(digit[0]) + 1) % 10) + README[digit.end() :])
    with pytest.raises(SystemExit) as stale:
        main([str(page), "--check"])
    assert stale.value.code == 1
    assert "README.md: stale" in capsys.readouterr().out
    with pytest.raises(SystemExit) as done:
        main([str(page)])
    assert done.value.code == 0
    assert page.read_text() == README


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return shutil.copytree(ROOT / "results", tmp_path_factory.mktemp("copy") / "results")


@pytest.mark.parametrize("name", [*RECORDS, *COUNTS])
def test_tables_follow_their_records(name, results):
    """With every fraction of a record doubled, or every count in one that holds counts, a page is another one."""
    file = results / f"{name}.json"
    text = file.read_text()
    number, kind = (r"\d+", int) if name in COUNTS else (r"\d+\.\d+", float)
    file.write_text(re.sub(rf"(?<=[ \[]){number}(?=[,\n\]])", lambda match: str(2 * kind(match[0])), text))
    try:
        assert any(changed(path, results) for path in PAGES)
    finally:
        file.write_text(text)


def changed(path, results):
    page = path.read_text()
    return bool(BETWEEN.search(page)) and written(page, results) != page


def test_a_table_that_is_not_known_is_refused():
    with pytest.raises(SystemExit, match="there is no table 'mine'"):
        written("<!-- table: mine -->\n<!-- end -->\n")
