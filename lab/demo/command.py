"""`python -m lab demo`: what selective attention does, from an example by hand to what it saves.

First the paper's example `y=7; x=1; x=3; z=5; x=?`: one attention head with weights set by hand, and the real operator.
Then two small models, one with selective attention and one without, learn to answer such questions. A search finds how
little the cache of the one has to keep, and the same is done on text with a model of the zoo. That takes some minutes;
the last line is the path of a report with pictures, tables, settings and versions.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from selattn.cli import _options
from selattn.cli._options import Parser

REPORT = "runs/demo.html"

if TYPE_CHECKING:
    from rich.console import Console

    from lab.demo.assignment import Example


def main(argv: Sequence[str]) -> int:
    """Compute the example and draw it, then tell the story."""
    parser = Parser(prog="python -m lab demo", description=__doc__)
    parser.add_argument("--example", action="store_true", help="only the example by hand, without training")
    parser.add_argument("--steps", type=_options.whole(1), metavar="N", help="train for so many steps (default: 200)")
    parser.add_argument(
        "--html", type=_options.html_file, metavar="FILE", help=f"where the report goes (default: {REPORT})"
    )
    args = parser.parse_args(argv)
    if args.example:
        _options.refuse(args, ["steps", "html"], "--example trains nothing")
    from rich.console import Console

    from lab.demo.assignment import compute

    file = args.html or Path(REPORT)
    if not args.example:
        _options.check_files(argparse.Namespace(html=file), ["html"])
    console = Console(highlight=False)
    draw(compute(), console)
    if args.example:
        return 0

    from lab.demo.terminal import show_story

    if not show_story(console, args.steps, file):
        raise KeyboardInterrupt
    return 0


def draw(example: "Example", console: "Console") -> None:
    """The four parts, from who masks whom to the answer."""
    from rich.columns import Columns

    from lab.demo import draw as _draw
    from lab.demo.assignment import ANSWERS, TOKENS

    matrix = partial(_draw.matrix, tokens=TOKENS, cell=7 if console.width >= 104 else 5)

    console.print("\n[bold]y=7; x=1; x=3; z=5; x=?[/]   What is x? The latest value counts: 3.")
    console.print("One attention head, weights set by hand; nothing was trained.\n")

    console.print("[bold]Who masks whom[/]")
    draw_masking(example, console)

    heat = partial(matrix, shade=_draw.green_to_red)
    S = heat("S: a row masks a column", "relu(logits); 0 for <BOS> and itself", values=example.S)
    F = heat("F: a row finds a column masked", "the sum of S over the rows above", values=example.F)
    console.print(Columns([S, F], padding=(0, 4)), "")

    blue = partial(matrix, shade=_draw.white_to_blue)
    standard = blue("Standard attention", "softmax(logits)", values=example.standard)
    selective = blue("Selective attention", "softmax(logits - F)", values=example.selective)
    console.print(Columns([standard, selective], padding=(0, 4)), "")

    answers = {"standard": example.standard_answer, "selective": example.selective_answer}
    console.print("[bold]What x=? reads[/]")
    console.print(_draw.bars(ANSWERS, answers, width=min(console.width, 104) // 2 - 16), "")
    console.print(conclusion(example), end="\n\n")


def draw_masking(example: "Example", console: "Console") -> None:
    """The sentence with its masked tokens struck through, and an arrow from each token to those it masks."""
    from lab.demo import draw as _draw
    from lab.demo.assignment import TOKENS

    cell, last = 7, len(TOKENS) - 1
    console.print(_draw.sentence(TOKENS, (example.F[last] > 0).tolist(), cell))
    for i, row in enumerate(example.S):
        targets = row.nonzero().flatten().tolist()
        if targets:
            whom = " and ".join(TOKENS[j] for j in targets)
            note = f"{TOKENS[i]} masks {whom}" if i < last else f"so would {TOKENS[i]}, for later tokens"
            console.print(f"{_draw.arrow(i, targets, len(TOKENS), cell)}  {note}")
    console.print()


def conclusion(example: "Example") -> str:
    """One sentence with the numbers that were computed."""
    from lab.demo.assignment import ANSWERS

    first, second = example.standard_answer.topk(2).indices.sort().values.tolist()
    best = int(example.selective_answer.argmax())
    return (
        f"Standard attention reads {ANSWERS[first]} ({example.standard_answer[first]:.2f}) and {ANSWERS[second]} "
        f"({example.standard_answer[second]:.2f}) alike. "
        f"Selective attention answers [bold]{ANSWERS[best]}[/] ({example.selective_answer[best]:.2f})."
    )
