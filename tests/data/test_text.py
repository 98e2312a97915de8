"""Sources by name, and how documents are held out."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selattn.data import Reading, documents
from selattn.data.text import identity, is_validation
from selattn.errors import SelattnError


@pytest.fixture
def numbers(tmp_path):
    path = tmp_path / "numbers.txt"
    path.write_text("\n".join(map(str, range(1000))))
    return path


@given(fraction=st.floats(0, 1))
def test_a_split_takes_each_document_once(numbers_file, fraction):
    parts = []
    for split in ("train", "validation"):
        try:
            parts.append(list(documents(numbers_file, split, Reading(separator="line", validation=fraction))))
        except SelattnError:
            parts.append([])
    assert sorted(parts[0] + parts[1], key=int) == [str(i) for i in range(1000)]
    assert parts[0] == sorted(parts[0], key=int)


@pytest.fixture(scope="module")
def numbers_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("numbers") / "numbers.txt"
    path.write_text("\n".join(map(str, range(1000))))
    return path


@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.5])
def test_the_held_out_fraction(fraction):
    share = sum(is_validation(index, fraction) for index in range(20_000)) / 20_000
    assert abs(share - fraction) < 4.5 * (fraction * (1 - fraction) / 20_000) ** 0.5


def test_more_documents_do_not_move_the_earlier_ones(tmp_path, numbers):
    reading = Reading(separator="line")
    before = list(documents(numbers, "validation", reading))
    numbers.write_text(numbers.read_text() + "\nmore\nand more")
    assert list(documents(numbers, "validation", reading))[: len(before)] == before


def test_a_limit(numbers):
    assert list(documents(numbers, "train", Reading(separator="line", limit=2))) == ["0", "1"]


def test_a_folder_whose_files_are_splits(tmp_path):
    for name in ("train", "valid"):
        (tmp_path / f"{name}.txt").write_text(f"{name} one\n\n{name} two")
    assert list(documents(tmp_path)) == ["train one", "train two"]
    assert list(documents(tmp_path, "validation")) == ["valid one", "valid two"]
    with pytest.raises(SelattnError, match="has no files for the split 'test'; there are train, validation"):
        next(documents(tmp_path, "test"))


def test_the_embedded_text_can_be_split():
    first = list(documents("embedded", "train", Reading(limit=60)))
    assert first == list(documents("embedded", "train", Reading(limit=60)))
    held_out = set(documents("embedded", "validation", Reading(validation=0.5, limit=20)))
    assert held_out
    assert held_out.isdisjoint(documents("embedded", "train", Reading(validation=0.5, limit=20)))


@pytest.mark.parametrize(
    ("source", "split", "message"),
    [
        ("wikitxt", "train", "unknown source 'wikitxt' (no file or folder either); did you mean 'wikitext'?"),
        ("C4", "train", "unknown source 'C4' (no file or folder either); did you mean 'c4'?"),
        ("qqqqqq", "train", "there are embedded, c4, wikitext, lm1b"),
        ("nowhere/text.txt", "train", "no such file or folder: nowhere/text.txt"),
        ("text.txt", "train", "no such file or folder: text.txt"),
        ("embedded", "trian", "unknown split 'trian'; did you mean 'train'?"),
        ("embedded", "test", "embedded has no test split"),
    ],
)
def test_unknown_names(source, split, message):
    with pytest.raises(SelattnError) as error:
        next(documents(source, split))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_too_few_documents_to_hold_one_out(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    with pytest.raises(
        SelattnError, match="no document for the split 'validation': 1 in all, of which 2% are held out"
    ):
        list(documents(tmp_path / "a.txt", "validation"))


@pytest.mark.parametrize("settings", [{"validation": 1.5}, {"validation": -0.1}, {"limit": 0}])
def test_bad_settings(settings):
    with pytest.raises(SelattnError):
        Reading(**settings)


def test_the_identity_of_a_file_changes_with_it(numbers):
    before = identity(numbers)
    assert identity(numbers) == before
    os.utime(numbers, ns=(0, 0))
    assert identity(numbers) != before
    assert identity("c4") != identity("c4:realnewslike")
    assert identity("embedded")
