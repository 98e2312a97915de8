"""`selattn data`: look at a task or a source of text, or turn a source into token stores."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selattn.cli import _options
from selattn.cli._text import READING, add_reading_options, check_reading, reading_of
from selattn.errors import SelattnError

if TYPE_CHECKING:
    from rich.console import Console

    from selattn.data import Reading

VOCABULARY = 8000  # tokens of a tokenizer that is trained


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Register the command."""
    parser = subparsers.add_parser("data", help="look at tasks and texts, build token stores", description=__doc__)
    actions = parser.add_subparsers(title="actions", dest="action", metavar="<action>", required=True)

    show = actions.add_parser("show", help="print a few samples", description="Print a few samples of a task or text.")
    show.add_argument("name", help="variable-assignment, copy, parity, or a source of text as in `build`")
    show.add_argument("--samples", type=_options.whole(1), default=3, metavar="N", help="how many (default: 3)")
    show.add_argument("--seed", type=_options.seed, help="of a task (default: 0)")
    show.add_argument("--set", action="append", default=[], metavar="NAME=N", help="a setting of a task; repeatable")
    show.add_argument("--split", help="of a text (default: train)")
    _reading_options(show)

    build = actions.add_parser("build", help="tokenize a text", description="Turn a text into token stores.")
    build.add_argument("source", help="c4, wikitext, lm1b, hub:OWNER/NAME, a file, a folder, or embedded")
    build.add_argument("--out", type=_options.path, metavar="FOLDER", help="folder to make (default: in the cache)")
    build.add_argument(
        "--vocab", type=_options.whole(1, 2**31 - 1), metavar="N", help="tokens to train (default: 8000)"
    )
    build.add_argument(
        "--tokenizer",
        type=_options.path,
        metavar="PATH",
        help="use this one, train none: a model's folder, or a SentencePiece model",
    )
    build.add_argument("--split", nargs="+", default=["train", "validation"], help="default: train validation")
    build.add_argument(
        "--threads", type=_options.whole(1, 1024), default=1, metavar="N", help="for tokenizing (default: 1)"
    )
    _reading_options(build)


def _reading_options(parser: argparse.ArgumentParser) -> None:
    add_reading_options(parser)
    parser.add_argument(
        "--limit", type=_options.whole(1), metavar="N", help="read at most so many documents of a split"
    )


def run(args: argparse.Namespace) -> int:
    """Show or build."""
    from rich.console import Console

    from selattn.data import TASKS

    console = Console(highlight=False)
    if args.action == "build":
        build(args, read_with(args, args.source), console)
    elif args.name in TASKS:
        _options.refuse(args, ["split", *READING, "limit"], f"{args.name} is a task, no text")
        _options.fill(args, {"seed": 0})
        show_task(args, console)
    else:
        show_text(args, console)
    return 0


def read_with(args: argparse.Namespace, source: str) -> "Reading":
    """The settings for reading a source."""
    check_reading(args, [source])
    _options.fill(args, READING)
    return reading_of(args, args.limit)


def show_task(args: argparse.Namespace, console: "Console") -> None:
    """Samples of a task; tokens that have a loss stand in brackets."""
    from rich.text import Text

    from selattn.data import make_task

    task = make_task(args.name, **dict(map(_setting, args.set)))
    console.print(f"{task}: vocabulary {task.vocab_size}, context {task.context}; [loss]", markup=False)
    samples = task.dataset(args.seed, args.samples)
    for number in range(args.samples):
        sample = samples[number]
        line = Text()
        for token, label in zip(task.render(sample["input_ids"]).split(), sample["labels"].tolist(), strict=True):
            line.append(*((f"[{token}]", "bold green") if label >= 0 else (token, ""))).append(" ")
        console.print(line)


def _setting(text: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    if not equals or not value.isdecimal() or len(value) > 6:
        raise SelattnError(f"--set takes NAME=NUMBER, the number of at most 6 digits, not {text!r}")
    return name, int(value)


def show_text(args: argparse.Namespace, console: "Console") -> None:
    """The beginning of the first documents."""
    from itertools import islice

    from selattn.data import TASKS, documents
    from selattn.utils.suggest import advice, nearest

    if nearest(args.name, TASKS) and not Path(args.name).exists():
        raise SelattnError(f"unknown task or source {args.name!r}; {advice(args.name, TASKS)}")
    _options.refuse(args, ["seed", "set"], f"{args.name} is a text, no task")
    _options.fill(args, {"split": "train"})
    for text in islice(documents(args.name, args.split, read_with(args, args.name)), args.samples):
        console.rule(f"{len(text):,} characters", align="left")
        console.print(text[:600] + (" ..." if len(text) > 600 else ""), markup=False)


def build(args: argparse.Namespace, reading: "Reading", console: "Console") -> None:
    """A tokenizer, if none is given, and a store for each split."""
    from rich.table import Table

    from selattn.data import TokenStore, build_corpus, read_tokenizer, store_for, tokenizer_for
    from selattn.utils.folders import folders_for
    from selattn.utils.records import check_new_folder

    if args.out:
        check_new_folder(args.out)
    if len(set(args.split)) < len(args.split):
        raise SelattnError(f"--split names a split twice: {' '.join(args.split)}")
    if args.tokenizer:
        _options.refuse(args, ["vocab"], "--tokenizer has its own vocabulary")
        tokenizer = read_tokenizer(args.tokenizer)
    else:
        tokenizer = tokenizer_for(args.source, args.vocab or VOCABULARY, reading, progress=True)
    how: dict[str, Any] = {"reading": reading, "threads": args.threads, "progress": True}
    if args.out:
        with folders_for(args.out.parent):
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
