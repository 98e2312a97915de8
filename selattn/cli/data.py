"""`selattn data`: look at a source of text, or turn it into token stores."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from selattn.cli import _options
from selattn.cli._options import SOURCES, add_command, add_reading_options, check_reading, reading_of
from selattn.errors import SelattnError

if TYPE_CHECKING:
    from rich.console import Console

    from selattn.data import Reading


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `selattn data` and its options to the command line."""
    parser = add_command(subparsers, "data", "look at texts, build token stores", __doc__)
    actions = parser.add_subparsers(title="actions", dest="action", metavar="<action>", required=True)

    show = actions.add_parser("show", help="print a few documents", description="Print a few documents of a text.")
    show.add_argument("source", metavar="TEXT", help=SOURCES)
    _options.number(show, "--samples", "documents", 3)
    show.add_argument("--split", default="train", help="of the text (default: train)")

    build = actions.add_parser("build", help="tokenize a text", description="Turn a text into token stores.")
    build.add_argument("source", metavar="TEXT", help=SOURCES)
    _options.file(build, "--out", "folder to make (default: in the cache)", "FOLDER")
    _options.number(build, "--vocab", "size of the vocabulary", 8000, most=2**31 - 1)
    _options.file(
        build, "--tokenizer", "use this one: a model's folder, or a SentencePiece model (default: train one)", "PATH"
    )
    build.add_argument(
        "--split", nargs="+", default=["train", "validation"], help="of the text (default: train validation)"
    )
    _options.number(build, "--threads", "for tokenizing", 1, most=1024)
    for each in (show, build):
        add_reading_options(each)
        _options.number(each, "--limit", "documents of a split (default: all)")


def run(args: argparse.Namespace) -> int:
    """Print samples, or build a token store; the exit code."""
    from rich.console import Console

    console = Console(highlight=False)
    check_reading(args, [args.source])
    (build if args.action == "build" else show)(args, reading_of(args, args.limit), console)
    return 0


def show(args: argparse.Namespace, reading: Reading, console: Console) -> None:
    """The beginning of the first documents."""
    from itertools import islice

    from selattn.data import documents

    for text in islice(documents(args.source, args.split, reading), args.samples):
        console.rule(f"{len(text):,} characters", align="left")
        console.print(text[:600] + (" ..." if len(text) > 600 else ""), markup=False)


def build(args: argparse.Namespace, reading: Reading, console: Console) -> None:
    """A tokenizer, if none is given, and a store for each split."""
    from selattn.data import TokenStore, build_corpus, read_tokenizer, store_for, tokenizer_for
    from selattn.utils.files import folders_for
    from selattn.utils.records import check_new_folder
    from selattn.utils.tables import Table

    if args.out:
        check_new_folder(args.out)
    if len(set(args.split)) < len(args.split):
        raise SelattnError(f"--split names a split twice: {' '.join(args.split)}")
    if args.tokenizer:
        _options.refuse(args, ["vocab"], "--tokenizer has its own vocabulary")
        tokenizer = read_tokenizer(args.tokenizer)
    else:
        tokenizer = tokenizer_for(args.source, args.vocab, reading, progress=True)
    how: dict[str, Any] = {"reading": reading, "threads": args.threads, "progress": True}
    if args.out:
        with folders_for(args.out.parent):
            build_corpus(args.out, args.source, tokenizer, args.split, **how)
        stores = [TokenStore(args.out / split) for split in args.split]
    else:
        stores = [store_for(args.source, tokenizer, split, **how) for split in args.split]
    rows = []
    for split, store in zip(args.split, stores, strict=True):
        meta = store.meta
        ratio = f"{meta['bytes'] / meta['tokens']:.2f}"
        rows.append((split, f"{meta['documents']:,}", f"{meta['tokens']:,}", ratio, str(store.path)))
    head = ("split", "documents", "tokens", "bytes per token", "folder")
    console.print(Table(head, rows, left=[4]).rich())
    console.print(
        f"{tokenizer.vocab_size:,} tokens: {args.out / 'tokenizer' if args.out else tokenizer.path}", soft_wrap=True
    )
