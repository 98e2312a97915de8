"""The tables of the documents are those that the records give, and `tools.tables --check` sees one that is not."""

import re
import shutil

import pytest

from tools.numbers import faults
from tools.tables import BETWEEN, PAGES, ROOT, TABLES, main, written

README = (ROOT / "README.md").read_text()


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


@pytest.mark.parametrize(
    "name", ["attention", "decode", "conversion", "convert_pretrained", "reproduce/laptop/efficiency"]
)
def test_the_table_follows_its_records(name, tmp_path):
    """Every fraction in a record is doubled."""
    shutil.copytree(ROOT / "results", tmp_path / "results")
    file = tmp_path / f"results/{name}.json"
    text = file.read_text()
    file.write_text(re.sub(r"(?<=[ \[])\d+\.\d+", lambda number: str(2 * float(number[0])), text))
    if name == "convert_pretrained":  # its numbers are counts
        file.write_text(text.replace('"passkeys": 10', '"passkeys": 9'))
    assert written(README, tmp_path / "results") != README


def test_a_table_needs_no_other_source_and_prose_does():
    page = "# Title\n\n<!-- table: what-you-get -->\nIt takes 0.7.\n<!-- end -->\n"
    assert faults(page, {}) == []
    assert len(faults(f"{page}\nIt takes 0.7.\n", {})) == 1


def test_a_table_that_is_not_known_is_refused():
    with pytest.raises(SystemExit, match="there is no table 'mine'"):
        written("<!-- table: mine -->\n<!-- end -->\n")
