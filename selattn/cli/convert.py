"""`selattn convert`: a pretrained model learns to forget.

It gets a selecting form of its own and is trained to stay near the original while it needs fewer tokens; the folder is
a model for every command. Ctrl-C stops it, --resume continues; under torchrun the same command trains on many devices.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from selattn.cli import _options
from selattn.cli._options import READING, SOURCES, add_reading_options, check_reading
from selattn.errors import SelattnError

if TYPE_CHECKING:
    from rich.console import Console

    from selattn.conversion import Converted

# Options that stand for a field of the run.
FIELDS = {
    "steps": "schedule.steps",
    "lr": "optimizer.lr",
    "epsilon": "conversion.epsilon",
    "tau": "conversion.tau",
    "masks": "conversion.masks",
    "freeze_first": "conversion.freeze_first",
    "lora": "conversion.lora",
    "teacher": "conversion.teacher",
    "seed": "seed",
}


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `selattn convert` and its options to the command line."""
    parser = _options.add_command(subparsers, "convert", "teach a pretrained model to forget", __doc__)
    parser.add_argument(
        "model", metavar="MODEL", help="a model that does not select: a stock one, or one of `selattn train`"
    )
    parser.add_argument("--data", required=True, metavar="TEXT", help=f"what to train on: {SOURCES}")
    parser.add_argument(
        "--out", required=True, type=_options.path, metavar="FOLDER", help="folder of the run and its model"
    )
    _options.number(parser, "--steps", "steps of training (default: 400)")
    parser.add_argument(
        "--lr", type=_options.at_least_0, metavar="X", help="the peak of the learning rate (default: 5e-4)"
    )
    parser.add_argument(
        "--epsilon", type=_options.at_least_0, metavar="X", help="weight of the memory loss (default: 0.3)"
    )
    parser.add_argument("--tau", type=_options.at_least_0, metavar="X", help="clamp of M in that loss (default: 8)")
    _options.number(parser, "--masks", "selection masks (default: one for each key-value head)")
    _options.number(parser, "--freeze-first", "steps in which only the new form learns (default: 0)", least=0)
    _options.number(parser, "--lora", "train adapters (default: all weights)", metavar="RANK")
    parser.add_argument(
        "--teacher", type=_options.name, metavar="MODEL", help="the model to stay near (default: the original)"
    )
    parser.add_argument("--control", action="store_true", help="also train as long without selection, to compare")
    parser.add_argument(
        "--prune",
        nargs="?",
        const="original",
        metavar="WHAT",
        help="then search for budgets, as 'selattn prune --until WHAT' does (default: the loss of the original)",
    )
    parser.add_argument("--policy", help="eviction policy of --prune (default: selective)")
    parser.add_argument("--layout", default="documents", help="documents, one in each row (default), or packed")
    _options.number(parser, "--context", "tokens of a row (default: the model's, at most 512)", least=2)
    add_reading_options(parser)
    _options.add_seed(parser, "of the new weights and of the order of rows (default: 0)", None)
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="another setting, such as batch.micro=1"
    )
    parser.add_argument("--resume", action="store_true", help="continue from the newest whole checkpoint")
    parser.add_argument("--overwrite", action="store_true", help="delete what the folder holds and start over")


def run(args: argparse.Namespace) -> int:
    """Convert, showing progress, and print the table of losses."""
    if args.resume and args.overwrite:
        raise SelattnError("--resume continues a run and --overwrite starts over: give one of them")
    if args.prune is None:
        _options.refuse(args, ["policy"], "without --prune nothing is searched")
    check_reading(args, [args.data])
    from rich.console import Console

    from selattn.cli.main import INTERRUPTED
    from selattn.cli.settings import parse_until, parsed
    from selattn.conversion import conversion_run, convert
    from selattn.conversion.config import CONTEXT
    from selattn.conversion.run import EQUAL
    from selattn.models.loading import load
    from selattn.training.config import TextData
    from selattn.training.launch import resume_command
    from selattn.utils.distributed import leads
    from selattn.utils.progress import Shown

    given = {field: getattr(args, name) for name, field in FIELDS.items() if getattr(args, name) is not None}
    fields = [*given, *(setting.partition("=")[0] for setting in args.set)]
    twice = next((field for field in fields if fields.count(field) > 1), None)
    if twice is not None:
        raise SelattnError(f"{twice} is given twice: give it once")
    context = args.context or min(CONTEXT, load(args.model).description.context)
    text = TextData(source=args.data, context=context, **{name: getattr(args, name) for name in (*READING, "layout")})
    console = Console(stderr=True, highlight=False, quiet=not leads())
    progress = Shown(console, keep=True)
    try:
        found = convert(
            args.model,
            text,
            args.out,
            settings={**given, **parsed(conversion_run(args.model, text, context), args.set)},
            control=args.control,
            prune=args.prune if args.prune in (None, EQUAL) else parse_until([args.prune]),
            policy=args.policy,
            resume=args.resume,
            overwrite=args.overwrite,
            progress=progress,
        )
    except KeyboardInterrupt:
        progress.end()
        console.print(f"stopped; continue with:\n  {resume_command()}", soft_wrap=True)
        return INTERRUPTED
    finally:
        progress.end()
    if found.interrupted:
        console.print(f"stopped at step {found.step:,}; continue with:\n  {resume_command()}", soft_wrap=True)
        return INTERRUPTED
    if leads():
        draw(found, Console(highlight=False))
    return 0


def draw(found: Converted, console: Console) -> None:
    """Show the losses side by side, and where the model is."""
    import math

    from selattn.conversion.run import LINES, ORIGINAL
    from selattn.training.record import shares
    from selattn.utils.tables import Table

    record = found.record
    assert record is not None
    rows = []
    for key, line in LINES.items():
        if key in record.losses:
            loss = record.losses[key]
            rows.append((line, f"{loss:.4f}", f"{math.exp(loss):.3f}", f"{loss - record.losses[ORIGINAL]:+.4f}"))
    console.print(Table(("", "loss", "perplexity", "above the original"), rows).rich())
    if record.kept:
        console.print(f"kept by layer, of all tokens: {shares(record.kept)}")
    if record.budgeted is not None:
        told = record.budgeted
        factor = f"[bold]{told.memory_factor:.2f} times less memory[/]"
        console.print(f"{factor}: K = {list(told.budgets)} by the policy {told.policy}, in its config", soft_wrap=True)
    counted = f"{record.tokens:,} tokens; {record.rows:,} other rows compared"
    console.print(f"{counted}; the model is {found.folder}", soft_wrap=True)
