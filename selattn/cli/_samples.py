"""What `selattn data show` prints: a few samples of a task, or the beginning of some documents."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from selattn.cli import _options
from selattn.cli._text import READING, check_reading, reading_of
from selattn.errors import SelattnError

if TYPE_CHECKING:
    from rich.console import Console

    from selattn.data import Reading


def read_with(args: argparse.Namespace, source: str) -> Reading:
    """The settings for reading a source."""
    check_reading(args, [source])
    _options.fill(args, READING)
    return reading_of(args, args.limit)


def show_task(args: argparse.Namespace, console: Console) -> None:
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


def show_text(args: argparse.Namespace, console: Console) -> None:
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
