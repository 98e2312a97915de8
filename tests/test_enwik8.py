"""`python -m tools.enwik8`: articles of a dump as plain text, on a dump that is made up here."""

import gzip
import json
import zipfile

import pytest

from selattn.cli.main import guarded
from selattn.data import Reading, documents
from tools.enwik8 import main, plain

PAGE = "<page><title>{}</title><id>1</id><revision><text xml:space=&quot;preserve&quot;>{}</text></revision></page>\n"
BOAT = """{{Infobox|a={{nested|x}}|b=2}}
{| class="wide"
| a table {|
| in a table
|}
|}
[[Image:boat.png|thumb|A [[sail|sailing]] boat]]
'''Boats''' (from ''bot'') float on [[water]]&amp;nbsp;or on [[river (stream)|rivers]].&lt;ref&gt;A note.&lt;/ref&gt;

== History ==
* a list
People &lt;b&gt;row&lt;/b&gt; them [http://example.org for fun]. &lt;!-- hidden
words --&gt;Some sail.
[[Category:Boats]]
[[de:Boot]]"""
TEXT = "Boats (from bot) float on water or on rivers.\nPeople row them for fun. Some sail."


@pytest.fixture
def dump(tmp_path):
    """Two articles, a redirect, a template, a short page, and a page that is cut at the end."""
    pages = [
        ("Boat", BOAT),
        ("Boats", "#REDIRECT [[Boat]] " + "x" * 99),
        ("Template:Boat", "A template. " * 9),
        ("Tom &amp; Jerry", "They run. " * 9),
        ("Short", "A line."),
    ]
    text = "<mediawiki>\n" + "".join(PAGE.format(*page).replace("&quot;", '"') for page in pages)
    path = tmp_path / "enwik8"
    path.write_text(text + PAGE.format("Cut", "It is cut. " * 9)[:90])
    return path


def written(path):
    return [json.loads(line) for line in gzip.open(path, "rt", encoding="utf-8")]


def test_articles_become_lines_of_plain_text(dump, tmp_path, capsys):
    out = tmp_path / "new" / "text.jsonl.gz"
    assert main([str(dump), "--out", str(out), "--least", "40"]) == 0
    assert written(out) == [
        {"title": "Boat", "text": TEXT},
        {"title": "Tom & Jerry", "text": ("They run. " * 9).strip()},
    ]
    assert "2 documents" in capsys.readouterr().out
    assert list(documents(str(out), "train", Reading(validation=0.0))) == [each["text"] for each in written(out)]


def test_the_archive_gives_the_same_bytes_every_time(dump, tmp_path):
    with zipfile.ZipFile(tmp_path / "enwik8.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(dump, "enwik8")
    outs = [tmp_path / f"{number}.jsonl.gz" for number in range(2)]
    for source, out in zip((dump, tmp_path / "enwik8.zip"), outs, strict=True):
        main([str(source), "--out", str(out), "--least", "40"])
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_pages_longer_than_what_is_read_at_a_time(dump, tmp_path, monkeypatch):
    monkeypatch.setattr("tools.enwik8.BLOCK", 7)
    main([str(dump), "--out", str(tmp_path / "a.jsonl.gz"), "--least", "40"])
    assert [each["title"] for each in written(tmp_path / "a.jsonl.gz")] == ["Boat", "Tom & Jerry"]


@pytest.mark.parametrize("markup", ["{{open", "{|\nno end", "[[", "<ref>open", "'''''", "{{{{{{", "|}", ""])
def test_markup_that_is_not_closed_is_no_error(markup):
    assert plain(f"Text.\n{markup}").startswith("Text.")


@pytest.mark.parametrize(
    ("name", "content", "words", "message"),
    [
        ("none", None, [], "no such file"),
        ("text.txt", b"no page here", [], "has no article: it must be enwik8"),
        ("enwik8", b"<page>", ["--least", "0"], "--least must be at least 1"),
        ("enwik8", b"<page>", ["--out", "x.txt"], "--out must end in .jsonl.gz"),
    ],
)
def test_what_is_refused(name, content, words, message, tmp_path, capsys):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert guarded(main, [str(tmp_path / name), "--out", str(tmp_path / "o.jsonl.gz"), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.glob("*.gz*"))


def test_a_damaged_archive_is_refused_in_one_line(dump, tmp_path, capsys):
    with zipfile.ZipFile(tmp_path / "enwik8.zip", "w", zipfile.ZIP_STORED) as archive:
        archive.write(dump, "enwik8")
    content = (tmp_path / "enwik8.zip").read_bytes()
    (tmp_path / "enwik8.zip").write_bytes(content.replace(b"float", b"flaot"))
    assert guarded(main, [str(tmp_path / "enwik8.zip"), "--out", str(tmp_path / "o.jsonl.gz")]) == 2
    assert "is damaged" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.gz*"))
