"""What is said of a training: its losses, its speed, its evaluations, and what each layer keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from selattn.training.record import LogLine, Score
from selattn.utils.progress import Progress
from selattn.utils.typed import from_json

_LEVELS = "▁▂▃▄▅▆▇█"


def tell(progress: Progress, record: LogLine) -> None:
    """A line of the log: losses and speed, or an evaluation, which has a line of its own."""
    if "evaluation" in record:
        progress.say(f"step {record['step']:,}  {evaluation(from_json(dict[str, Score], record['evaluation']))}")
    else:
        progress.advance(0, f"{training(record)}  {speed(record)}")


def training(record: LogLine) -> str:
    """Loss and kept fractions of a record of the training; with a teacher the two parts of the loss, too."""
    kept, apart = record["kept"], ""
    if "kl_loss" in record:
        apart = f"  next token {record['lm_loss']:.3f}  KL {record['kl_loss']:.3f}"
    return f"loss {record['loss']:.3f}{apart}" + (f"  kept {shares(kept)}" if kept else "")


def speed(record: LogLine) -> str:
    """How fast training went, in tokens per second."""
    return f"{record['wall']['tokens_per_second']:,.0f} tokens/s"


def evaluation(scores: Mapping[str, Score]) -> str:
    """Each set with its loss and, for a task, its accuracy."""
    parts = []
    for name, score in scores.items():
        accuracy = "" if score.accuracy is None else f", {score.accuracy:.1%} right"
        parts.append(f"{name.replace('_', ' ')}: loss {score.loss:.4f}{accuracy}")
    return "  ".join(parts)


def shares(kept: Sequence[float | None]) -> str:
    """The kept fraction of each layer: numbers for a few, small columns for many."""
    known = [share for share in kept if share is not None]
    if len(kept) <= 4:
        return " ".join("-" if share is None else f"{share:.2f}" for share in kept)
    columns = "".join(" " if share is None else _LEVELS[min(int(share * len(_LEVELS)), 7)] for share in kept)
    return f"{columns} {sum(known) / len(known):.2f}"
