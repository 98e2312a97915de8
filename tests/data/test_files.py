"""Local files: what a document is in each format, and one line for everything that can be wrong with a file."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selattn.data.files import find_files, join_articles, named_splits, read_file
from selattn.errors import SelattnError

LINES = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1).filter(str.strip)


def read(path, column="text", separator="blank"):
    return list(read_file(path, column, separator))


def write(path, data):
    raw = data if isinstance(data, bytes) else data.encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize(
    ("separator", "expected"),
    [
        ("blank", ["one\ntwo", "three", "--\nfour"]),
        ("line", ["one", "two", "three", "--", "four"]),
        ("single", ["one", "two\n\nthree\n \n\n--", "four"]),
        ("file", ["one\ntwo\n\nthree\n \n\n--\nfour"]),
        ("--", ["one\ntwo\n\nthree\n \n", "four"]),
    ],
)
def test_what_separates_documents_of_a_text(tmp_path, name, separator, expected):
    path = write(tmp_path / name, "one\r\ntwo\n\nthree\n \n\n--\nfour\n")
    assert read(path, separator=separator) == expected


def test_articles_as_wikitext_marks_them(tmp_path):
    """Sections do not begin an article, nor does a formula that looks like a title."""
    text = " \n = One = \n \n a \n = = Part = = \n b \n = 7 / 2 = \n c \n \n = Two = \n \n d \n"
    documents = read(write(tmp_path / "a.txt", text), separator="article")
    assert [document.split()[1] for document in documents] == ["One", "Two"]
    assert "".join(documents).split() == text.split()
    from_hub = join_articles(line + "\n" for line in text.split("\n"))  # whose rows end with \n
    assert [document for document in from_hub if document.strip()] == documents


@given(texts=st.lists(LINES, min_size=1, max_size=8), column=st.sampled_from(["text", "body"]))
def test_jsonl_gives_the_texts_back(texts, column, tmp_path_factory):
    path = tmp_path_factory.mktemp("jsonl") / "a.jsonl"
    write(path, "\n\n".join(json.dumps({"id": 1, column: text}) for text in texts))
    assert read(path, column) == texts


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_the_wrong_byte_is_named(tmp_path, packed):
    path = write(tmp_path / f"a.txt{packed}", b"\xef\xbb\xbfgood line\nr\xc3\xa9sum\xe9\n")
    where = "19 of the unpacked text" if packed else "19"
    with pytest.raises(SelattnError, match=rf"a.txt{packed} is not UTF-8: byte {where} is 0xe9"):
        read(path)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", "", "a.txt is empty"),
        ("a.txt", " \n\n \n", "a.txt holds no text"),
        ("a.txt.gz", "", "a.txt.gz holds no text"),
        ("a.jsonl", "\n\n", "a.jsonl holds no text"),
        ("a.jsonl", '{"text": "x"}\n{"tex', "a.jsonl, line 2: not JSON"),
        ("a.jsonl", '["x"]', "a.jsonl, line 1: a list; each line must be one object"),
        ("a.jsonl", '{"title": "x", "body": "y"}', "a.jsonl, line 1: no column 'text'; there are 'title', 'body'"),
        ("a.jsonl", "{}", "no column 'text'; there are none"),
        ("a.jsonl", '{"text": 3}', "column 'text' holds a int, not text"),
        ("a.csv", "x", "must be .txt or .jsonl"),
        ("a.gz", "x", "must be .txt or .jsonl"),
    ],
)
def test_one_line_for_a_bad_file(tmp_path, name, data, message):
    path = write(tmp_path / name, data)
    with pytest.raises(SelattnError, match=message) as error:
        [read(file) for file in find_files(path)]
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", [lambda raw: raw[:-12], lambda raw: b"plain text", lambda raw: raw[:20] + b"?" * 9])
def test_a_damaged_archive(tmp_path, damage):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(damage(gzip.compress(b"some text " * 50)))
    with pytest.raises(SelattnError, match=r"a.txt.gz is damaged or not gzip"):
        read(path)


def test_a_file_that_may_not_be_read(tmp_path):
    path = write(tmp_path / "a.txt", "x")
    path.unlink()
    path.mkdir()
    with pytest.raises(SelattnError, match=r"cannot read .*a.txt: Is a directory"):
        read(path)


def test_a_folder_is_read_in_the_order_of_names(tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("c.txt", "b/x.jsonl", "a.TXT.GZ", "notes.md", ".hidden.txt"):
        (tmp_path / name).write_text("x")
    assert [path.relative_to(tmp_path).as_posix() for path in find_files(tmp_path)] == [
        "a.TXT.GZ",
        "b/x.jsonl",
        "c.txt",
    ]


def test_splits_by_name(tmp_path):
    names = ["c4-train.00000-of-01024.json.gz", "c4-train.00001-of-01024.json.gz", "valid/a.txt", "test.txt"]
    found = named_splits(tmp_path, [tmp_path / name for name in names])
    files = {split: [path.relative_to(tmp_path).as_posix() for path in paths] for split, paths in found.items()}
    assert files == {"train": names[:2], "validation": [names[2]], "test": [names[3]]}


def test_some_names_that_tell_a_split_are_not_enough(tmp_path):
    with pytest.raises(SelattnError, match=r"named for a split and others, such as more.txt"):
        named_splits(tmp_path, [tmp_path / name for name in ("train.txt", "valid.txt", "more.txt")])


@pytest.mark.parametrize("half", ["\\ud83d", "\\udc00 and more"])
def test_half_a_character_in_json_is_named(tmp_path, half):
    path = write(tmp_path / "a.jsonl", '{"text": "\\ud83d\\ude00 is whole"}\n{"text": "' + half + '"}\n')
    with pytest.raises(SelattnError, match=r"a.jsonl, line 2: column 'text' holds half a surrogate pair"):
        read(path)
