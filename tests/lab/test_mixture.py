"""`python -m lab mixture`: books stay whole, nothing held out is trained on, and the same bytes every time."""

import gzip
import json
import random

import pytest

from lab.__main__ import main as lab
from lab.mixture import Copies, Document, Group, interleaved

WORDS = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrst"]


def text(*seed, words=120):
    draw = random.Random(" ".join(map(str, seed)))
    return " ".join(draw.choice(WORDS) for _ in range(words))


def write(path, rows):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def sources(tmp_path):
    """Books in chapters, pages, some of which are nearly the same, a large source, and one to train on nothing of."""
    books = [
        {"title": f"Book {book}, {chapter}", "author": "A. B.", "text": text("book", book, chapter)}
        for book in range(30)
        for chapter in range(4)
    ]
    pages = [{"title": str(i), "text": text("page", i)} for i in range(120)]
    unseen = [{"title": str(i), "text": text("unseen", i)} for i in range(20)]
    pages += [{"title": f"again {i}", "text": each["text"] + " And more."} for i, each in enumerate(pages[:60])]
    pages += [{"title": f"news {i}", "text": "So: " + each["text"]} for i, each in enumerate(unseen)]
    large = [{"title": str(i), "text": text("large", i)} for i in range(600)]
    folder = tmp_path / "in"
    write(folder / "books.jsonl", books)
    write(folder / "pages.jsonl", pages)
    write(folder / "large.jsonl", large)
    write(folder / "news.jsonl", unseen)
    return folder


def build(sources, out, *words):
    assert lab(["mixture", str(sources), "--unseen", "news", *words, "--out", str(out)]) == 0
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def rows(out, name):
    return [json.loads(line) for line in gzip.open(out / f"{name}.jsonl.gz", "rt")]


@pytest.fixture
def built(sources, tmp_path, capsys):
    build(sources, tmp_path / "out")
    return tmp_path / "out"


PARTS = ("mixture/train", "mixture/validation", "mixture/test", "search", "unseen/news")


def test_chapters_of_a_book_are_in_one_part_and_in_their_order(built):
    where = {}
    for part in PARTS:
        found = [row["title"] for row in rows(built, part) if row["source"] == "books"]
        for title in found:
            where.setdefault(title.rpartition(", ")[0], []).append((part, title))
    assert len(where) == 30
    for book, chapters in where.items():
        assert len({part for part, _ in chapters}) == 1
        assert [title for _, title in chapters] == [f"{book}, {chapter}" for chapter in range(4)]


def test_every_part_has_every_source_and_nothing_stands_twice(built):
    seen = {part: rows(built, part) for part in PARTS}
    for part in PARTS[:4]:
        assert {row["source"] for row in seen[part]} == {"books", "pages", "large"}
    texts = [row["text"] for found in seen.values() for row in found]
    assert len(texts) == len(set(texts))
    assert len(seen["unseen/news"]) == 20


def test_nothing_held_out_is_trained_on_nor_nearly(built):
    """By an own measure: runs of five words that a training document shares with any that is held out."""

    def runs(row):
        words = row["text"].lower().replace(".", "").split()
        return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}

    held = set().union(*(runs(row) for part in PARTS[1:] for row in rows(built, part)))
    train = rows(built, "mixture/train")
    assert max(len(runs(row) & held) / len(runs(row)) for row in train) < 0.1
    assert not any(row["title"].startswith("news") for row in train)
    left_out = json.loads((built / "counts.json").read_text())["near-duplicates left out"]
    assert left_out == {"books": 0, "large": 0, "news": 0, "pages": 80}


@pytest.mark.parametrize("share", [0.1, 0.3333])
def test_a_share_is_not_exceeded_and_nearly_reached(share, sources, tmp_path, capsys):
    build(sources, tmp_path / "out", "--share", f"large={share}")
    train = rows(tmp_path / "out", "mixture/train")
    size = {
        name: sum(len(row["text"]) for row in train if row["source"] == name) for name in ("large", "books", "pages")
    }
    assert share - 0.02 < size["large"] / sum(size.values()) <= share


def test_the_same_bytes_twice(sources, tmp_path, capsys):
    assert build(sources, tmp_path / "a") == build(sources, tmp_path / "b")


def test_every_stretch_has_all_sources():
    def groups(name, number):
        return [Group([Document(name, str(i), "x")]) for i in range(number)]

    mixed = interleaved([groups("a", 40), groups("b", 10)])
    for start in range(0, 50, 5):
        assert sorted(each.source for each in mixed[start : start + 5]) == ["a"] * 4 + ["b"]


def test_copies_are_seen_and_other_texts_are_not():
    copies = Copies()
    one = text("one")
    assert copies.fresh(one)
    assert not copies.fresh(one.upper() + "!")
    assert not copies.fresh(" ".join(one.split()[:90]))
    assert copies.fresh(text("two"))
    assert copies.fresh("short")
    assert not copies.fresh("Short.")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--unseen", "nws"], "there is no source 'nws': there are books, large, news, pages"),
        (["--share", "large"], "--share takes NAME=VALUE, not 'large'"),
        (["--share", "large=x"], "--share takes NAME=X with 0 < X < 1, not 'large=x'"),
        (["--share", "large=1"], "--share takes NAME=X with 0 < X < 1"),
        (["--share", "large=nan"], "--share takes NAME=X with 0 < X < 1"),
        (["--share", "large=0.5", "--share", "books=0.6"], "the shares add up to 1.1: leave some of the text"),
        (["--share", "news=0.5", "--unseen", "news"], "news is unseen: --share would change nothing"),
        (["--separator", "large=line"], "large has no .txt file: --separator would change nothing"),
        (["books={there}"], "two sources are called 'books'"),
        (["other={nowhere}"], "no such file or folder"),
        (["tiny={tiny}"], "tiny has too few documents to be split"),
        (["--unseen", "books", "--unseen", "large", "--unseen", "pages", "--unseen", "news"], "every source is unseen"),
    ],
)
def test_what_is_refused(words, message, sources, tmp_path, capsys):
    there = write(tmp_path / "one.jsonl", [{"text": "A text."}])
    words = [word.format(there=there, nowhere=tmp_path / "nowhere.jsonl", tiny=there) for word in words]
    assert lab(["mixture", str(sources), *words, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
