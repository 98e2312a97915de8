"""The options of commands that read text with the tokenizer of a model."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selattn.evaluate.text import Text

SOURCES = "c4, wikitext, lm1b, hub:OWNER/NAME, a file, a folder, or embedded"


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """How text is read and cut."""
    parser.add_argument("--split", default="validation", help="of the text (default: validation)")
    parser.add_argument("--layout", default="documents", help="documents, one in each row (default), or packed")
    parser.add_argument("--context", type=int, metavar="N", help="tokens of a row (default: the model's context size)")
    add_reading_options(parser)
    parser.add_argument(
        "--no-eos", action="store_true", help="documents do not end with </s>: as the model was trained"
    )
    parser.add_argument("--batch", type=int, default=8, metavar="N", help="rows at a time (default: 8)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the rows (default: 0)")


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """How a source is read: the settings of `selattn.data.Reading`."""
    parser.add_argument("--column", default="text", help="where .jsonl and the hub have the text (default: text)")
    parser.add_argument(
        "--separator",
        default="blank",
        help="between documents of .txt: blank, line, single, file, article, or such a line (default: blank)",
    )
    parser.add_argument("--validation", type=float, default=0.02, metavar="F", help="held out (default: 0.02)")


def text_of(args: argparse.Namespace, source: str, long: bool = False) -> Text:
    """The text that the options name."""
    from selattn.data import Reading
    from selattn.evaluate.text import Text

    reading = Reading(args.column, args.separator, args.validation)
    return Text(source, args.split, args.layout, long, args.seed, not args.no_eos, reading)


def texts_of(args: argparse.Namespace) -> dict[str, Text]:
    """The texts of a command that takes several, by name; with --long each is followed by its long documents alone."""
    from selattn.evaluate.text import text_names

    found = {}
    for source, name in text_names(args.data).items():
        found[name] = text_of(args, source)
        if args.long:
            found[f"{name}, long"] = text_of(args, source, long=True)
    return found
