"""From the options of `selattn plot` to a figure."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selattn.errors import SelattnError

if TYPE_CHECKING:
    from selattn.views.mean import MeanF
    from selattn.views.trace import Trace


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
    from selattn.views.reading import given_text
    from selattn.views.trace import Trace, trace

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
    from selattn.utils.progress import ProgressLine
    from selattn.views.mean import MeanF, mean_f

    if subject.endswith(".json"):
        return MeanF.load(subject)
    if args.text is None:
        raise SelattnError(
            f"{args.figure} needs many texts: give --text, a file, a folder, or a source such as embedded"
        )
    text, rows = Text(args.text, args.split or "validation", seed=args.seed or 0), args.rows or 100
    with ProgressLine(f"F of {subject}", rows) as line:
        return mean_f(subject, text, rows, limit=args.tokens, progress=line.advance)


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
