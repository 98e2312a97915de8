"""The options of commands that read text with the tokenizer of a model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from selattn.cli import _options

if TYPE_CHECKING:
    from selattn.data import Reading
    from selattn.evaluation.text import Text

SOURCES = "c4, wikitext, lm1b, hub:OWNER/NAME, a file, a folder, or embedded"
READING: dict[str, Any] = {"column": "text", "separator": "blank", "validation": 0.02}
TEXT: dict[str, Any] = {"split": "validation", "layout": "documents", **READING}


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """How text is read and cut; their defaults come with `fill_text_options`."""
    parser.add_argument("--split", help="of the text (default: validation)")
    parser.add_argument("--layout", help="documents, one in each row (default), or packed")
    parser.add_argument(
        "--context", type=_options.whole(2), metavar="N", help="tokens of a row (default: the model's context size)"
    )
    add_reading_options(parser)
    parser.add_argument(
        "--no-eos", action="store_true", help="documents do not end with </s>: as the model was trained"
    )
    parser.add_argument("--batch", type=_options.whole(1), metavar="N", help="rows at a time (default: 8)")
    parser.add_argument("--seed", type=_options.seed, default=0, help="of the order of the rows (default: 0)")


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """How a source is read: the settings of `selattn.data.Reading`."""
    parser.add_argument("--column", help="where .jsonl and the hub have the text (default: text)")
    parser.add_argument(
        "--separator",
        help="between documents of .txt: blank, line, single, file, article, or such a line (default: blank)",
    )
    parser.add_argument(
        "--validation",
        type=float,
        metavar="F",
        help="the share of the documents that is held out, 1 for all of them (default: 0.02)",
    )


def fill_text_options(args: argparse.Namespace, sources: Sequence[str]) -> None:
    """The defaults, once it is known that what was given is read of one of these sources."""
    check_reading(args, sources)
    _options.fill(args, {**TEXT, "batch": 8})


def check_reading(args: argparse.Namespace, sources: Sequence[str]) -> None:
    """Raise for a setting that none of the sources has a use for."""
    if not _options.given(args, READING):
        return
    from selattn.evaluation.sources import settings_of

    useful = {setting for source in sources for setting in settings_of(source)}
    _options.refuse(args, [name for name in READING if name not in useful], f"{', '.join(sources)} has no use for it")


def reading_of(args: argparse.Namespace, limit: int | None = None) -> Reading:
    """The settings that the options name."""
    from selattn.data import Reading

    return Reading(args.column, args.separator, args.validation, limit)


def text_of(args: argparse.Namespace, source: str, long: bool = False) -> Text:
    """The text that the options name."""
    from selattn.evaluation.text import Text

    return Text(source, args.split, args.layout, long, args.seed, not args.no_eos, reading_of(args))


def texts_of(args: argparse.Namespace) -> dict[str, Text]:
    """The texts of a command that takes several, by name; with --long each is followed by its long documents alone."""
    from selattn.evaluation.text import text_names

    found = {}
    for source, name in text_names(args.data).items():
        found[name] = text_of(args, source)
        if args.long:
            found[f"{name}, long"] = text_of(args, source, long=True)
    return found
