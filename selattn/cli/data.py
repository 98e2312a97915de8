"""`selattn data`: look at a task or a source of text, or turn a source into token stores."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selattn.cli._text import add_reading_options
from selattn.errors import SelattnError

if TYPE_CHECKING:
    from rich.console import Console

    from selattn.data import Reading


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Register the command."""
    parser = subparsers.add_parser("data", help="look at tasks and texts, build token stores", description=__doc__)
    actions = parser.add_subparsers(title="actions", dest="action", metavar="<action>", required=True)

    show = actions.add_parser("show", help="print a few samples", description="Print a few samples of a task or text.")
    show.add_argument("name", help="variable-assignment, copy, parity, or a source of text as in `build`")
    show.add_argument("--samples", type=int, default=3, metavar="N", help="how many (default: 3)")
    show.add_argument("--seed", type=int, default=0, help="of a task (default: 0)")
    show.add_argument("--set", action="append", default=[], metavar="NAME=N", help="a setting of a task; repeatable")
    show.add_argument("--split", default="train", help="of a text (default: train)")
    _reading_options(show)

    build = actions.add_parser("build", help="tokenize a text", description="Turn a text into token stores.")
    build.add_argument("source", help="c4, wikitext, lm1b, hub:OWNER/NAME, a file, a folder, or embedded")
    build.add_argument("--out", type=Path, metavar="DIR", help="folder to make (default: in the cache)")
    build.add_argument("--vocab", type=int, default=8000, metavar="N", help="tokens to train (default: 8000)")
    build.add_argument("--tokenizer", type=Path, metavar="FILE", help="use this SentencePiece model, train none")
    build.add_argument("--split", nargs="+", default=["train", "validation"], help="default: train validation")
    build.add_argument("--threads", type=int, default=1, metavar="N", help="for tokenizing (default: 1)")
    _reading_options(build)


def _reading_options(parser: argparse.ArgumentParser) -> None:
    add_reading_options(parser)
    parser.add_argument("--limit", type=int, metavar="N", help="read at most so many documents of a split")


def run(args: argparse.Namespace) -> int:
    """Show or build."""
    from rich.console import Console

    from selattn.data import TASKS, Reading

    console = Console(highlight=False)
    reading = Reading(args.column, args.separator, args.validation, args.limit)
    if args.action == "build":
        build(args, reading, console)
    elif args.name in TASKS:
        show_task(args, console)
    else:
        show_text(args, reading, console)
    return 0


def show_task(args: argparse.Namespace, console: "Console") -> None:
    """Samples of a task; tokens that have a loss stand in brackets."""
    from rich.text import Text

    from selattn.data import make_task

    task = make_task(args.name, **dict(map(_setting, args.set)))
    console.print(f"{task}: vocabulary {task.vocab_size}, context {task.context}; [loss]", markup=False)
    for sample in task.dataset(args.seed, args.samples).__getitems__(range(args.samples)):
        line = Text()
        for token, label in zip(task.render(sample["input_ids"]).split(), sample["labels"].tolist(), strict=True):
            line.append(*((f"[{token}]", "bold green") if label >= 0 else (token, ""))).append(" ")
        console.print(line)


def _setting(text: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    if not equals or not value.isdecimal():
        raise SelattnError(f"--set takes NAME=NUMBER, not {text!r}")
    return name, int(value)


def show_text(args: argparse.Namespace, reading: "Reading", console: "Console") -> None:
    """The beginning of the first documents."""
    import difflib
    from itertools import islice

    from selattn.data import TASKS, documents

    near = difflib.get_close_matches(args.name, TASKS, 1)
    if near and not Path(args.name).exists():
        raise SelattnError(f"unknown task or source {args.name!r}; did you mean {near[0]!r}?")
    for text in islice(documents(args.name, args.split, reading), args.samples):
        console.rule(f"{len(text):,} characters", align="left")
        console.print(text[:600] + (" ..." if len(text) > 600 else ""), markup=False)


def build(args: argparse.Namespace, reading: "Reading", console: "Console") -> None:
    """A tokenizer, if none is given, and a store for each split."""
    from rich.table import Table

    from selattn.data import Tokenizer, TokenStore, build_corpus, store_for, tokenizer_for

    if args.out and args.out.exists():
        raise SelattnError(f"{args.out} exists already: delete it, or choose another folder")
    tokenizer = Tokenizer(args.tokenizer) if args.tokenizer else tokenizer_for(args.source, args.vocab, reading)
    how: dict[str, Any] = {"reading": reading, "threads": args.threads, "progress": True}
    if args.out:
        build_corpus(args.out, args.source, tokenizer, args.split, **how)
        stores = [TokenStore(args.out / split) for split in args.split]
    else:
        stores = [store_for(args.source, tokenizer, split, **how) for split in args.split]
    table = Table("split", "documents", "tokens", "bytes per token")
    table.add_column("folder", overflow="fold")
    for split, store in zip(args.split, stores, strict=True):
        meta = store.meta
        ratio = f"{meta['bytes'] / meta['tokens']:.2f}"
        table.add_row(split, f"{meta['documents']:,}", f"{meta['tokens']:,}", ratio, str(store.path))
    console.print(table)
    console.print(
        f"{tokenizer.vocab_size:,} tokens: {args.out / 'tokenizer' if args.out else tokenizer.path}", soft_wrap=True
    )
