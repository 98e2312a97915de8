"""`python -m lab show TASK`: a few samples of a task; tokens that have a loss stand in brackets."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from lab.tasks import TASKS, make_task
from selattn.cli import _options
from selattn.cli._options import Parser
from selattn.errors import SelattnError


def main(argv: Sequence[str]) -> int:
    """Print them."""
    parser = Parser(prog="python -m lab show", description=__doc__)
    parser.add_argument("name", help=", ".join(TASKS))
    parser.add_argument("--samples", type=_options.whole(1), default=3, metavar="N", help="how many (default: 3)")
    parser.add_argument("--seed", type=_options.seed, default=0, help="default: 0")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=N", help="a setting of it; repeatable")
    args = parser.parse_args(argv)
    console = Console(highlight=False)
    task = make_task(args.name, **dict(map(_setting, args.set)))
    console.print(f"{task}: vocabulary {task.vocab_size}, context {task.context}; [loss]", markup=False)
    samples = task.dataset(args.seed, args.samples)
    for number in range(args.samples):
        sample = samples[number]
        line = Text()
        for token, label in zip(task.render(sample["input_ids"]).split(), sample["labels"].tolist(), strict=True):
            line.append(*((f"[{token}]", "bold green") if label >= 0 else (token, ""))).append(" ")
        console.print(line)
    return 0


def _setting(text: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    if not equals or not value.isdecimal() or len(value) > 6:
        raise SelattnError(f"--set takes NAME=NUMBER, the number of at most 6 digits, not {text!r}")
    return name, int(value)
