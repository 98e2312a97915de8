"""`selattn plot`: the paper's pictures for any model and any text, as PNG, SVG or PDF.

Of one text (--text FILE, 'paper' for the paper's own example, 'sample' for the one beside a model):
  tokens         what one token sees: masked tokens are struck through in red, read ones lit in blue
  masking        F of each layer; greener is lower
  words          the last row's masking over the words of the text, layer by layer
  attention      attention of all layers, of several models beside each other
  kept           the tokens in the cache: MODEL@BUDGETS or MODEL@BUDGETS:POLICY

Of many texts (--text FILE, a folder, or a source as `selattn eval --data` takes it; --rows N of them):
  masking-mean   F of each layer, a mean
  stability      the means of two training runs

Of records:
  tradeoff       of `selattn eval --curve`
  search         of `selattn prune`
  curves         loss over training, of training_record.json
  scaling        loss against size, context and heads, of training_record.json

In place of a model, a record that --record wrote draws the same figure again without the model.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from selattn.cli import _options
from selattn.errors import SelattnError, unknown

if TYPE_CHECKING:
    from selattn.evaluation.traces import MeanF, Trace


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `selattn plot` and its options to the command line."""
    parser = _options.add_command(subparsers, "plot", "the paper's pictures for any model and text", __doc__)
    parser.add_argument("figure", metavar="FIGURE", help="one of those above")
    parser.add_argument("subjects", nargs="+", metavar="MODEL_OR_RECORD", help="as the figure needs")
    parser.add_argument(
        "--text",
        type=_options.name,
        metavar="FILE",
        help="a file, 'paper' (the default) or 'sample'; or a source of many texts",
    )
    parser.add_argument("--out", type=_options.path, required=True, metavar="FILE", help="ends with .png, .svg or .pdf")
    _options.file(parser, "--record", "also write the data of the figure")
    _options.number(parser, "--layers", "counted from 0 (default: all)", least=0, metavar="L", nargs="+")
    _options.number(
        parser, "--position", "of tokens: the one that looks back (default: the last)", least=0, metavar="I"
    )
    _options.number(parser, "--tokens", "the most to read (default: the model's context size)", least=2)
    _options.number(parser, "--rows", "texts of a mean", 100)
    parser.add_argument("--split", default="validation", help="of a source of many texts (default: validation)")
    _options.add_seed(parser, "of the order of many texts")
    parser.add_argument("--title", metavar="TEXT", help="of the figure (default: made of the model's name)")


def run(args: argparse.Namespace) -> int:
    """Draw, and say where it is."""
    from selattn.views.plot import FIGURES
    from selattn.views.plot.style import check_format, write_figure

    if args.figure not in FIGURES:
        raise SelattnError(unknown("figure", args.figure, FIGURES))
    kind = FIGURES[args.figure]
    if not kind.least <= len(args.subjects) <= kind.most:
        count = kind.least if kind.least == kind.most else f"{kind.least} to {kind.most}"
        raise SelattnError(f"{args.figure} takes {count} models or records, not {len(args.subjects)}")
    check_options(args, kind.of, kind.options)
    check_format(args.out)
    _options.check_files(args, ["out", "record"])
    read: Any = {"one text": trace_of, "many texts": mean_of, "records": record_of}[kind.of]
    seen = [read(args, subject) for subject in args.subjects]
    try:
        figure = kind.draw(*seen, **{name: getattr(args, name) for name in kind.options})
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        if kind.of != "records" or isinstance(error, SelattnError):
            raise
        named = ", ".join(args.subjects)
        raise SelattnError(f"{named}: no whole records for {args.figure}; measure them again") from None
    if args.record is not None:  # once it is known that the figure can be drawn
        seen[0].save(args.record)
    print(write_figure(figure, args.out))
    return 0


def check_options(args: argparse.Namespace, of: str, options: Sequence[str]) -> None:
    """Raise for options that the figure does not use."""
    _options.refuse(args, {"layers", "title"} - set(options), f"{args.figure} has no use for it")
    if args.position is not None and "position" not in options:
        raise SelattnError("--position belongs to tokens")
    reading = ["text", "tokens", "rows", "split", "seed"]
    if of == "records":
        _options.refuse(args, reading, f"{args.figure} is drawn from records")
        if args.record is not None:
            raise SelattnError(f"{args.figure} is drawn from records: there is nothing to write into --record")
    elif all(subject.endswith(".json") for subject in args.subjects):
        _options.refuse(args, reading, "a record holds the text that was read")
    if of == "one text":
        _options.refuse(args, ["rows", "split", "seed"], f"{args.figure} is of one text")
    if args.record is not None and len(args.subjects) > 1:
        raise SelattnError("a record holds one model: write one for each, and draw from the records")


def trace_of(args: argparse.Namespace, subject: str) -> Trace:
    """The trace of a model on the text, or of a record."""
    from selattn.evaluation.traces import Trace, given_text, trace

    if subject.endswith(".json"):
        return Trace.load(subject)
    from selattn.cache import make_policy
    from selattn.evaluation import Subject

    parsed = Subject.parse(subject)
    runs = []
    if parsed.budgets is not None:
        runs = [(make_policy(parsed.description.policy), parsed.budgets)]
    elif args.figure == "kept":
        raise SelattnError(f"{subject} has no budgets: give {subject}@64, {subject}@BUDGETS.json or {subject}@64:h2o")
    return trace(parsed.loaded, given_text(args.text, parsed.loaded), runs, limit=args.tokens)


def mean_of(args: argparse.Namespace, subject: str) -> MeanF:
    """The mean of F of a model on the texts, or of a record."""
    from selattn.evaluation import Text
    from selattn.evaluation.traces import MeanF, mean_f
    from selattn.utils.progress import Shown

    if subject.endswith(".json"):
        return MeanF.load(subject)
    if args.text is None:
        raise SelattnError(
            f"{args.figure} needs many texts: give --text, a file, a folder, or a source such as embedded"
        )
    text = Text(args.text, args.split, seed=args.seed)
    return mean_f(subject, text, args.rows, limit=args.tokens, progress=Shown())


def record_of(args: argparse.Namespace, subject: str) -> dict[str, Any]:
    """A record, or that of a model's training."""
    from selattn.models.loading import TRAINING, load
    from selattn.utils.records import read_record

    return read_record(subject if subject.endswith(".json") else load(subject).folder / TRAINING)
