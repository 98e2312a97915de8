"""Sources by name, and how documents are held out."""

import json
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selattn.data import Reading, documents
from selattn.data.sources import division, identity, is_validation, name_of
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


WORDS = st.lists(st.sampled_from(list("abcdefgh")), min_size=1, max_size=40)


@given(texts=WORDS, fraction=st.floats(0, 1), limit=st.none() | st.integers(1, 20))
def test_a_copy_of_a_training_document_is_not_validated_on(tmp_path_factory, texts, fraction, limit):
    """Nothing else changes: the training documents are those of always, and so are the other held-out ones."""
    path = tmp_path_factory.mktemp("copies") / "text.txt"
    path.write_text("\n".join(texts))
    train = [text for index, text in enumerate(texts) if not is_validation(index, fraction)][:limit]
    held_out = [text for index, text in enumerate(texts) if is_validation(index, fraction)][:limit]
    for split, expected in (("train", train), ("validation", [text for text in held_out if text not in train])):
        found = documents(path, split, Reading(separator="line", validation=fraction, limit=limit))
        if expected:
            assert list(found) == expected
        else:
            with pytest.raises(SelattnError, match=f"no document for the split '{split}'"):
                list(found)


def test_blanks_around_a_copy_do_not_hide_it(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": "the same" + " " * i}) + "\n" for i in range(100)))
    with pytest.raises(SelattnError, match="100 in all, of which 2% are held out, and those are copies of training"):
        list(documents(path, "validation"))


def test_no_text_of_a_corpus_is_kept(tmp_path):
    """What is remembered of the training documents is eight bytes each."""
    path = tmp_path / "text.jsonl"
    with path.open("w") as file:
        file.writelines(json.dumps({"text": f"{number} {'x' * 50_000}"}) + "\n" for number in range(400))
    tracemalloc.start()
    try:
        assert sum(1 for _ in documents(path, "validation", Reading(validation=0.1))) > 20
        assert tracemalloc.get_traced_memory()[1] < 3_000_000  # of 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.5])
def test_the_held_out_fraction(fraction):
    share = sum(is_validation(index, fraction) for index in range(20_000)) / 20_000
    assert abs(share - fraction) < 4.5 * (fraction * (1 - fraction) / 20_000) ** 0.5


def test_a_folder_whose_files_are_splits(tmp_path):
    for name in ("train", "valid"):
        (tmp_path / f"{name}.txt").write_text(f"{name} one\n\n{name} two")
    assert list(documents(tmp_path)) == ["train one", "train two"]
    assert list(documents(tmp_path, "validation")) == ["valid one", "valid two"]
    with pytest.raises(SelattnError, match="has no files for the split 'test'; there are train, validation"):
        next(documents(tmp_path, "test"))


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
        ("hub:", "train", "'hub:' names no dataset: write hub:OWNER/NAME"),
        ("hub: ", "train", "names no dataset"),
        ("hub::config", "train", "names no dataset"),
        ("q" * 5000, "train", "(5,000 characters): File name too long"),
        ("x/" * 2500, "train", "(5,000 characters): File name too long"),
        ("~nobody-at-all/text.txt", "train", "cannot read ~nobody-at-all/text.txt: Could not determine home"),
        ("no\0where.txt", "train", "no such file or folder: no"),
    ],
)
def test_unknown_names(source, split, message):
    with pytest.raises(SelattnError) as error:
        next(documents(source, split))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_the_identity_of_a_file_changes_with_it(numbers):
    before = identity(numbers)
    assert identity(numbers) == before
    os.utime(numbers, ns=(0, 0))
    assert identity(numbers) != before
    assert identity("c4") != identity("c4:realnewslike")
    assert identity("embedded")


def test_a_source_has_one_name_however_it_is_spelled(numbers, monkeypatch):
    monkeypatch.chdir(numbers.parent)
    spellings = ["numbers.txt", "./numbers.txt", numbers, f"../{numbers.parent.name}/numbers.txt"]
    assert {name_of(each) for each in spellings} == {str(numbers)}
    assert len({str(identity(each)) for each in spellings}) == 1
    assert name_of("c4") == name_of("c4:en") == name_of("hub:allenai/c4:en") == "allenai/c4:en"
    assert name_of("embedded") == "embedded"


def test_the_same_files_can_be_divided_in_two_ways(tmp_path):
    """A folder's name is part of how its files are divided, if the folder above is the source."""
    folder = tmp_path / "data" / "train"
    folder.mkdir(parents=True)
    for name in ("a", "valid"):
        (folder / f"{name}.txt").write_text("\n\n".join(f"{name} {i}" for i in range(99)))
    assert identity(folder) == identity(folder.parent)
    assert list(documents(folder)) != list(documents(folder.parent))
    assert division(folder, "train") != division(folder.parent, "train")
    assert division("c4", "validation") == division(folder, "train") == ""
    assert Path(name_of(folder)) == folder
