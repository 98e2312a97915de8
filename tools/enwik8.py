"""Plain text from enwik8, the first 100 million bytes of an English Wikipedia: one JSON line a document.

    python -m tools.enwik8 enwik8.zip --out data/enwik8-clean/enwik8.jsonl.gz

The input is http://mattmahoney.net/dc/enwik8.zip or the file in it. The lines are `{"title": ..., "text": ...}`, with a
paragraph in each line of a text. Redirects, pages that are no articles, templates, tables, pictures, footnotes,
formulas, headings, lists and texts shorter than `--least` characters are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import html
import json
import re
import sys
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from selattn.cli.main import guarded
from selattn.errors import SelattnError
from selattn.utils.files import replacing

LEAST = 300  # characters
BLOCK = 1 << 20  # bytes that are read at a time

_PAGE = re.compile(r"<title>(?P<title>.*?)</title>.*<text[^>]*>(?P<text>.*)</text>", re.DOTALL)
_OTHER = re.compile(r"(?:Wikipedia|Template|Category|Image|Portal|MediaWiki|Help|User)(?: talk)?:|Talk:", re.IGNORECASE)
_REDIRECT = re.compile(r"\s*#redirect", re.IGNORECASE)
_HIDDEN = re.compile(
    r"<!--.*?(?:-->|\Z)|<(ref|math|gallery|timeline|pre|code|table|div|imagemap)\b(?:[^>]*/>|.*?(?:</\1>|\Z))",
    re.DOTALL | re.IGNORECASE,
)
_TABLE = re.compile(r"^:*\{\|(?:(?!^:*\{\|).)*?^\|\}", re.DOTALL | re.MULTILINE)  # one that holds no other
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}|\{\{\{[^{}]*\}\}\}")
_LINK = re.compile(r"\[\[([^\[\]]*)\]\]")
_OUTSIDE = re.compile(r"\[(?:https?|ftp|mailto)[^\s\]]*\s*([^\]]*)\]")
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z-]+)?:|simple:")
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_NO_TEXT = re.compile(r"^(?:[*#:;|!=]|\{\||----).*", re.MULTILINE)


def pages(file: IO[bytes]) -> Iterator[tuple[str, str]]:
    """Title and markup of every whole page; the last one of enwik8 is cut."""
    rest = b""
    while block := file.read(BLOCK):
        *whole, rest = (rest + block).split(b"</page>")
        for page in whole:
            found = _PAGE.search(page.decode(errors="replace"))
            if found:
                yield html.unescape(found["title"]), html.unescape(found["text"])


def is_article(title: str, markup: str) -> bool:
    """Whether a page is neither a redirect nor about Wikipedia itself."""
    return not _OTHER.match(title) and not _REDIRECT.match(markup)


def plain(markup: str) -> str:
    """The paragraphs of a page, one in each line."""
    text = _HIDDEN.sub("", markup)
    for pattern, instead in ((_TEMPLATE, ""), (_TABLE, ""), (_LINK, _shown)):  # from the innermost outwards
        before = None
        while text != before:
            before, text = text, pattern.sub(instead, text)
    text = _TAG.sub("", _OUTSIDE.sub(r"\1", text))
    text = _NO_TEXT.sub("", html.unescape(text))
    text = re.sub(r"'{2,}|__[A-Z]+__", "", text).replace("\N{NO-BREAK SPACE}", " ")
    lines = (re.sub(r"[ \t]+", " ", re.sub(r"\(\s*[,;]?\s*\)", "", line)).strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def _shown(link: re.Match[str]) -> str:
    """The text that a reader sees of [[link]]: none for pictures, categories and other languages."""
    target, _, words = link[1].partition("|")
    if _OTHER.match(target) or _LANGUAGE.match(target):
        return ""
    return words.rpartition("|")[2] or target.lstrip(":")


def convert(source: Path, out: Path, least: int = LEAST) -> tuple[int, int]:
    """Write the documents, whole or not at all; how many there are, and their characters."""
    documents = characters = 0
    with _opened(source) as file, replacing(out) as part, part.open("wb") as raw:
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:  # the same bytes every time
            for title, markup in pages(file):
                text = plain(markup) if is_article(title, markup) else ""
                if len(text) >= least:
                    line = json.dumps({"title": title, "text": text}, ensure_ascii=False)
                    packed.write(line.encode() + b"\n")
                    documents, characters = documents + 1, characters + len(text)
        if not documents:
            raise SelattnError(f"{source} has no article: it must be enwik8, or enwik8.zip as it is distributed")
    return documents, characters


@contextlib.contextmanager
def _opened(source: Path) -> Iterator[IO[bytes]]:
    try:
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as archive, archive.open(archive.namelist()[0]) as file:
                yield file
        else:
            with source.open("rb") as file:
                yield file
    except (zipfile.BadZipFile, zlib.error, EOFError, IndexError) as error:
        raise SelattnError(f"{source} is damaged: {error}; get it again") from None


def main(argv: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.enwik8", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="enwik8 or enwik8.zip")
    parser.add_argument("--out", type=Path, required=True, help="the file to write, .jsonl.gz")
    parser.add_argument("--least", type=int, default=LEAST, help=f"characters of a document (default: {LEAST})")
    args = parser.parse_args(argv)
    if not args.out.name.endswith(".jsonl.gz"):
        raise SelattnError(f"--out must end in .jsonl.gz, not {args.out.name}")
    if args.least < 1:
        raise SelattnError(f"--least must be at least 1, not {args.least}")
    if not args.source.is_file():
        raise SelattnError(f"no such file: {args.source}")
    documents, characters = convert(args.source, args.out, args.least)
    print(f"{args.out}: {documents:,} documents, {characters / 1e6:.1f} million characters")
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
