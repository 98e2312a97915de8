"""Numbers in documents, held against the records that they come from.

A comment behind a paragraph, a list or a table (a block) says where its numbers come from. Readers do not see it:

    Where nothing is forgotten it takes 0.74 of flash attention's time at 2,048 tokens (`results/attention.json`).
    <!-- numbers
    0.74 = attention.nothing(n=2048, backend="cpu").forward_ratio
    2,048: the length that was measured
    -->

`TEXT = SOURCE` is a measured number. The lines follow the order of the page, and the text must be the record's value,
rounded once to the digits that the text has. `TEXT, TEXT: REASON` excuses what no record holds, such as settings and
the paper's own values, wherever it stands in the block. `NAME := SOURCE` is a name for the lines below. A whole table
can be made of a record, with a line for each column:

    <!-- table row in attention.nothing if row.backend != "flash"
    N: {row.n:,}
    forward: {row.forward_ratio:.2f}
    -->

Sources are Python expressions (see `sources.py`), and columns are f-strings of them.

What counts as measured: decimals, percentages, "1.2x", "8 times", and whatever has a unit. In a block that names a
file of `results/` or has such a comment every number counts, but for "N = 512" and the like. Code is left alone, and so
are versions ("Python 3.11"). A block that names records must name those that its numbers are from, and otherwise its
section must.

`python -m tools.numbers` prints what is wrong; with --write it puts the records' numbers into the pages.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tools.sources import Fault, names, read_records, rounded, value_of

ROOT = Path(__file__).parents[1]
# In a page that a command makes from records; a test of its own holds it to them.
WRITTEN = "<!-- Written by "
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if not page.exists() or WRITTEN not in page.read_text()]

BOUNDARY = re.compile(r"<!--(?P<comment>.*?)-->[ \t]*\n?|^[ \t]*\n|\Z", re.MULTILINE | re.DOTALL)
HIDDEN = re.compile(
    r"^<!-- table: .*?^<!-- end -->$"  # written by tools/tables.py
    r"|^```.*?^```$"  # fences
    r"|^ {4}[^\n]*$"  # indented code
    r"|`[^`\n]+`"  # code in a line
    r"|\]\([^)\s]*\)"  # where a link leads
    r"|https?://\S+"
    r"|^ *\d+\. ",  # the numbers of a list
    re.MULTILINE | re.DOTALL,
)
UNITS = "MB|GB|kB|KB|bytes|ns|ms|µs|seconds?|tokens/s|tokens (?:per|a) second|times|GFLOP/s"
NUMBER = re.compile(
    r"(?<![\w.,^/+-])(?P<text>(?:\d{1,3}(?:,\d{3})+|\d+)(?P<decimals>\.\d+)?(?P<power>e-?\d+)?(?P<mark>%|x)?)"
    rf"(?P<unit>\s?(?:{UNITS})\b)?(?!\w|\.\d|-[a-z])"
)
SETTING = re.compile(r"[=≥≤<>]\s?$")
VERSION = re.compile(r"\b(?:Python|PyTorch|torch|transformers|version)\s$")
CITED = re.compile(r"\bresults/([\w./-]*\w)?")


@dataclass(frozen=True)
class Line:
    """A line of a comment, and where it begins in the page."""

    start: int
    text: str


@dataclass(frozen=True)
class Block:
    """Lines of a page without a blank one among them; a comment behind it says where its numbers come from.

    Attributes:
        start, end: its place in the page.
        raw: as it stands in the page.
        text: with code blanked out, so that places in it stay the same.
        section: the number of headings so far.
        kind, head, body: of the comment: "numbers" or "table", the rest of its first line, and its other lines.
    """

    start: int
    end: int
    raw: str
    text: str
    section: int
    kind: str = ""
    head: str = ""
    body: tuple[Line, ...] = ()


@dataclass(frozen=True)
class Finding:
    """Something wrong in a part of a page, and, if a record knows, what should stand there instead."""

    start: int
    end: int
    what: str
    instead: str | None = None


def split(page: str) -> list[Block]:
    """The blocks of a page, in order."""
    shown = HIDDEN.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), page)
    found: list[Block] = []
    start = section = 0
    for boundary in BOUNDARY.finditer(shown):
        end = boundary.start()
        section += shown.startswith("#", start)
        block = Block(start, end, page[start:end], shown[start:end], section)
        if (boundary["comment"] or "").split()[:1] in (["numbers"], ["table"]):
            comment = re.compile(r"\S.*").finditer(page, *boundary.span("comment"))
            first, *body = (Line(line.start(), line.group()) for line in comment)
            kind, _, head = first.text.partition(" ")
            found.append(replace(block, kind=kind, head=head, body=tuple(body)))
        elif block.text.strip():
            found.append(block)
        start = boundary.end()
    return found


def measured(block: Block) -> list[re.Match[str]]:
    """The numbers of a block that need a source."""
    strict = bool(block.kind or CITED.search(block.raw))
    found = []
    for match in NUMBER.finditer(block.text):
        telling = any(match[part] for part in ("decimals", "power", "mark", "unit"))
        before = block.text[: match.start()]
        if (telling or (strict and not SETTING.search(before))) and not VERSION.search(before):
            found.append(match)
    return found


def definition(line: Line) -> tuple[str, str] | None:
    """NAME := SOURCE, a name for the lines below."""
    name, equals, source = line.text.partition(" := ")
    return (name, source) if equals and name.isidentifier() else None


def measurement(line: Line) -> tuple[str, str] | None:
    """TEXT = SOURCE, a number that a record has."""
    text, equals, source = line.text.partition(" = ")
    return (text, source) if equals and ":" not in text else None


def rows_of(block: Block) -> str:
    """The source of a table's rows."""
    cells = (line.text.partition(": ")[2] for line in block.body if not definition(line))
    joined = ", ".join(f'f"""{cell}"""' for cell in cells)
    return f"[({joined},) for {block.head}]"


def check_numbers(block: Block, known: Mapping[str, Any]) -> Iterator[Finding]:
    """What is wrong with the numbers of a block that its comment lists one by one, if it has one."""
    sources: list[tuple[Line, str, str]] = []
    excused: set[str] = set()
    for line in block.body:
        texts, colon, reason = line.text.partition(": ")
        if definition(line):
            continue
        if found := measurement(line):
            sources.append((line, *found))
        elif colon and reason.strip():
            excused |= set(texts.split(", "))
        else:
            yield Finding(block.start, block.end, f"neither TEXT = SOURCE nor TEXT: REASON: {line.text}")
    numbers = measured(block)
    for text in sorted(excused - {match["text"] for match in numbers}):
        yield Finding(block.start, block.end, f"{text} is excused, but is not there")
    numbers = [match for match in numbers if match["text"] not in excused]
    for match, (line, text, source) in zip(numbers, sources, strict=False):
        start, end = block.start + match.start("text"), block.start + match.end("text")
        try:
            if text != match["text"]:
                raise Fault(f"{match['text']} stands where the sources go on with {text} = {source}")
            if not names(source):
                raise Fault(f"{text} = {source} reads no record; {text}: REASON would excuse it")
            right = rounded(value_of(source, known), text)
        except Fault as fault:
            yield Finding(start, end, str(fault))
            continue
        if right != text:
            what = f"{text} is {right} in the record: {source}"
            yield Finding(start, end, what, right)
            yield Finding(line.start, line.start + len(text), what, right)
    for match in numbers[len(sources) :]:
        start, end = block.start + match.start("text"), block.start + match.end("text")
        yield Finding(start, end, f"{match['text']} has no source; say behind the block where it comes from")
    for _, text, source in sources[len(numbers) :]:
        yield Finding(block.start, block.end, f"nothing is left for {text} = {source}")


def check_table(block: Block, known: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether a table is what its record gives."""
    headings = [line.text.partition(": ")[0] for line in block.body if not definition(line)]
    rows = [headings, ["---"] * len(headings), *value_of(rows_of(block), known)]
    right = "".join(f"| {' | '.join(row)} |\n".replace("|  |", "| |") for row in rows)
    if right != block.raw:
        yield Finding(block.start, block.end, "the table is not what its record gives", right)


def check(block: Block, records: Mapping[str, Any], named: set[str]) -> Iterator[Finding]:
    """What is wrong with a block. `named` are the records that its section names."""
    definitions = list(filter(None, map(definition, block.body)))
    sources = [source for _, source in definitions]
    sources += [rows_of(block)] if block.kind == "table" else [m[1] for m in map(measurement, block.body) if m]
    try:
        used = set[str]().union(*map(names, sources)) - {name for name, _ in definitions}
        if block.kind == "table" and not block.raw and used - set(records):
            return  # where there is no such record yet, there is no table
        named = cited(block.raw) or named
        for name in sorted(used & set(records) - named) if "" not in named else ():
            yield Finding(block.start, block.end, f"its numbers are from results/{name}, which is not named there")
        known = dict(records)
        for name, source in definitions:
            known[name] = value_of(source, known)
        yield from check_table(block, known) if block.kind == "table" else check_numbers(block, known)
    except Fault as fault:
        yield Finding(block.start, block.end, str(fault))


def cited(text: str) -> set[str]:
    """The records that a text names, as sources name them; an empty name for the whole folder."""
    found = {(match[1] or "").split("/")[0].removesuffix(".json") for match in CITED.finditer(text)}
    return {re.sub(r"\W", "_", name) for name in found}


def findings(page: str, records: Mapping[str, Any]) -> list[Finding]:
    """All that is wrong with the numbers of a page."""
    found = split(page)
    named: dict[int, set[str]] = {}
    for block in found:
        named[block.section] = named.get(block.section, set()) | cited(block.raw)
    wrong = [each for block in found for each in check(block, records, named[block.section])]
    return sorted(wrong, key=lambda each: each.start)


def faults(page: str, records: Mapping[str, Any]) -> list[str]:
    """A line for each thing that is wrong with the numbers of a page."""
    lines = {f"line {page.count(chr(10), 0, each.start) + 1}: {each.what}": None for each in findings(page, records)}
    return list(lines)


def corrected(page: str, records: Mapping[str, Any]) -> str:
    """The page with the numbers and tables of its records."""
    for each in reversed(findings(page, records)):
        if each.instead is not None:
            page = page[: each.start] + each.instead + page[each.end :]
    return page


def main() -> None:
    """Check all pages, or write the records' numbers into them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES, help="default: README.md and docs/")
    parser.add_argument("--write", action="store_true", help="put the records' numbers into the pages")
    args = parser.parse_args()
    records = read_records(ROOT / "results")
    wrong = 0
    for path in args.pages:
        page = path.read_text()
        if args.write and (right := corrected(page, records)) != page:
            path.write_text(right)
            page = right
        for line in faults(page, records):
            print(f"{path.name}, {line}")
            wrong += 1
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
