"""`selattn plot`: the paper's pictures for any model and any text, as PNG, SVG or PDF.

Of one text (--text FILE, 'paper' for the paper's own example, 'sample' for the one beside a model):
  tokens         what one token finds struck through by masking (red) and lit by attention (blue)
  masking        F of each layer; greener is lower
  words          the last row's masking over the words of the text, layer by layer
  attention      attention of all layers, of several models beside each other
  kept           what remains in the cache: MODEL@BUDGETS or MODEL@BUDGETS:POLICY
Of many texts (--text FILE, a folder, or a source as `selattn eval --data` takes it; --rows N of them):
  masking-mean   F of each layer, a mean
  stability      the means of two training runs
Of records: tradeoff (of `selattn eval --curve`), search (of `selattn prune`), curves and scaling (of
training_record.json).

Instead of a model, a record that --record wrote draws the same figure again without the model.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selattn.cli import _options
from selattn.errors import SelattnError

if TYPE_CHECKING:
    from selattn.evaluation.traces import MeanF, Trace

OF_A_TEXT = ("tokens", "masking", "words", "attention", "kept")
OF_MANY = ("masking-mean", "stability")
OF_RECORDS = ("tradeoff", "search", "curves", "scaling")
MANY = {"attention": 8, "stability": 2, "curves": 64, "scaling": 64}  # subjects of a figure; the others have one


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `selattn plot` and its options to the command line."""
    parser = subparsers.add_parser(
        "plot",
        help="the paper's pictures for any model and text",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("figure", metavar="FIGURE", help=", ".join((*OF_A_TEXT, *OF_MANY, *OF_RECORDS)))
    parser.add_argument("subjects", nargs="+", metavar="MODEL_OR_RECORD")
    parser.add_argument(
        "--text",
        type=_options.name,
        metavar="FILE",
        help="a file, 'paper' (the default) or 'sample'; or a source of many",
    )
    parser.add_argument("--out", type=_options.path, required=True, metavar="FILE", help="ends with .png, .svg or .pdf")
    parser.add_argument("--record", type=_options.path, metavar="FILE", help="also write what the figure is drawn from")
    parser.add_argument(
        "--layers", type=_options.whole(0), nargs="+", metavar="L", help="counted from 0 (default: all)"
    )
    parser.add_argument(
        "--position", type=_options.whole(0), metavar="I", help="with tokens: who looks back (default: the last)"
    )
    parser.add_argument(
        "--tokens", type=_options.whole(2), metavar="N", help="at most so many (default: the model's context size)"
    )
    parser.add_argument(
        "--rows", type=_options.whole(1), default=100, metavar="N", help="texts of a mean (default: 100)"
    )
    parser.add_argument("--split", default="validation", help="of a source of many texts (default: validation)")
    parser.add_argument("--seed", type=_options.seed, default=0, help="of the order of many texts (default: 0)")
    parser.add_argument("--title", help="instead of the one that is made of the model's name")


def run(args: argparse.Namespace) -> int:
    """Draw, and say where it is."""
    from selattn.errors import unknown
    from selattn.views.plot.style import check_format, write_figure

    known = [*OF_A_TEXT, *OF_MANY, *OF_RECORDS]
    if args.figure not in known:
        raise SelattnError(unknown("figure", args.figure, known))
    most = MANY.get(args.figure, 1)
    least = 2 if args.figure == "stability" else 1
    if not least <= len(args.subjects) <= most:
        count = least if least == most else f"{least} to {most}"
        raise SelattnError(f"{args.figure} takes {count} models or records, not {len(args.subjects)}")
    check_options(args)
    check_format(args.out)
    _options.check_files(args, ["out", "record"])
    if args.record is not None and len(args.subjects) > 1:
        raise SelattnError("a record holds one model: write one for each, and draw from the records")
    draw = of_records if args.figure in OF_RECORDS else of_many if args.figure in OF_MANY else of_a_text
    print(write_figure(draw(args), args.out))
    return 0


def check_options(args: argparse.Namespace) -> None:
    """Whether the figure has a use for what was given."""
    if args.position is not None and args.figure != "tokens":
        raise SelattnError("--position belongs to tokens")
    if args.figure in OF_RECORDS:
        untitled = ["title"] if args.figure == "tradeoff" else []
        unread = ["layers", "tokens", "rows", "split", "seed", *untitled]
        _options.refuse(args, unread, f"{args.figure} is drawn from records")
        if args.record is not None:
            raise SelattnError(f"{args.figure} is drawn from records: there is nothing to write into --record")
    elif all(subject.endswith(".json") for subject in args.subjects):
        _options.refuse(args, ["text", "tokens", "rows", "split", "seed"], "what a record holds was read before")
    if args.figure in OF_A_TEXT:
        _options.refuse(args, ["rows", "split", "seed"], f"{args.figure} is of one text")


def of_a_text(args: argparse.Namespace) -> Any:
    """The figure of one text, or of one text in several models."""
    from selattn.views import plot

    traces = [_trace(args, subject) for subject in args.subjects]
    how = {"layers": args.layers, "title": args.title}
    if args.figure == "attention":
        figure = plot.attention(*traces, **how)
    elif args.figure == "tokens":
        figure = plot.tokens(traces[0], position=args.position, **how)
    else:
        draw: Any = {"masking": plot.masking, "words": plot.words, "kept": plot.kept}[args.figure]
        figure = draw(traces[0], **how)
    if args.record is not None:  # once it is known that the figure can be drawn
        traces[0].save(args.record)
    return figure


def _trace(args: argparse.Namespace, subject: str) -> Trace:
    from selattn.evaluation.traces import Trace, given_text, trace

    if subject.endswith(".json"):
        return Trace.load(subject)
    from selattn.cache import make_policy
    from selattn.evaluation.subjects import Subject

    parsed = Subject.parse(subject)
    runs = []
    if parsed.budgets is not None:
        runs = [(make_policy(parsed.description.policy), parsed.budgets)]
    elif args.figure == "kept":
        raise SelattnError(f"{subject} has no budgets: give {subject}@64, {subject}@BUDGETS.json or {subject}@64:h2o")
    return trace(parsed.loaded, given_text(args.text, parsed.loaded), runs, limit=args.tokens)


def of_many(args: argparse.Namespace) -> Any:
    """The figure of a mean over many texts, or of two."""
    from selattn.views import plot

    means = [_mean(args, subject) for subject in args.subjects]
    how = {"layers": args.layers, "title": args.title}
    if args.figure == "stability":
        return plot.stability(means[0], means[1], **how)
    figure = plot.masking_mean(means[0], **how)
    if args.record is not None:  # once it is known that the figure can be drawn
        means[0].save(args.record)
    return figure


def _mean(args: argparse.Namespace, subject: str) -> MeanF:
    from selattn.evaluation.text import Text
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


def of_records(args: argparse.Namespace) -> Any:
    """The figure of records."""
    from selattn.utils.records import read_record
    from selattn.views import plot

    if args.text is not None:
        raise SelattnError(f"{args.figure} is drawn from records: it reads no --text")
    records = [read_record(_record_of(subject)) for subject in args.subjects]
    try:
        if args.figure == "tradeoff":
            return plot.tradeoff(records[0])
        if args.figure == "search":
            return plot.search(records[0], title=args.title)
        return {"curves": plot.curves, "scaling": plot.scaling}[args.figure](*records, title=args.title)
    except SelattnError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        named = ", ".join(args.subjects)
        raise SelattnError(f"{named}: no whole records for {args.figure}; measure them again") from None


def _record_of(subject: str) -> Path:
    """A record, or that of a model's training."""
    from selattn.models.loading import TRAINING, load

    return Path(subject) if subject.endswith(".json") else load(subject).folder / TRAINING
