"""What a user sees of a run: a bar in a terminal, lines where there is none, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from selattn.training.record import LogLine, Score
from selattn.utils.progress import ProgressLine
from selattn.utils.typed import from_json

_LEVELS = "▁▂▃▄▅▆▇█"


class Display:
    """Nothing is shown; the others show something."""

    shows = False

    def begin(self, step: int, steps: int) -> None:
        """A run begins, or goes on, at `step`."""

    def goes_on(self, step: int, steps: int, left_out: Sequence[str]) -> None:
        """A run that was begun goes on at `step`; checkpoints were left out, and why."""

    def step(self, step: int) -> None:
        """A step has ended."""

    def record(self, record: LogLine) -> None:
        """A record of the log."""

    def interrupting(self) -> None:
        """Ctrl-C was pressed: the run ends after this step."""

    def end(self) -> None:
        """The run has ended, in whatever way; called again it does nothing."""


class Lines(Display):
    """A line for each record: for files, pipes and batch systems."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def goes_on(self, step: int, steps: int, left_out: Sequence[str]) -> None:
        """Say it once, in front of everything else."""
        for why in left_out:
            self.console.print(f"{why}; it is left out", highlight=False, soft_wrap=True, markup=False)
        where = f"going on from step {step:,} of {steps:,}" if step else "no whole checkpoint yet: beginning at step 0"
        self.console.print(where, highlight=False, soft_wrap=True)

    def record(self, record: LogLine) -> None:
        """Print a line of the log: losses and speed, or an evaluation."""
        if "evaluation" in record:
            shown = evaluation(from_json(dict[str, Score], record["evaluation"]))
        else:
            shown = f"{training(record)}  {speed(record)}"
        self.console.print(f"step {record['step']:,}  {shown}", highlight=False, soft_wrap=True)

    def interrupting(self) -> None:
        """Say what happens next."""
        self.console.print("stopping, with a checkpoint", highlight=False)


class Bar(Lines):
    """A bar with the loss, the kept fraction of each layer and the speed; evaluations are printed above it."""

    shows = True

    def __init__(self, console: Console, title: str = "") -> None:
        super().__init__(console)
        self.title = title
        self._line: ProgressLine | None = None

    def begin(self, step: int, steps: int) -> None:
        """Draw it, below the title: a name can be long, and the numbers need the line."""
        if self.title:
            self.console.print(f"[bold]{self.title}[/]", highlight=False)
        self._line = ProgressLine("", steps, completed=step, left="", keep=True, console=self.console).start()

    def step(self, step: int) -> None:
        """Move the progress line to a step."""
        if self._line is not None:
            self._line.update(step)

    def record(self, record: LogLine) -> None:
        """Show it in the bar; print an evaluation."""
        if "evaluation" in record or self._line is None:
            super().record(record)
        else:
            self._line.update(text=f"{training(record)} [dim]{speed(record)}[/]")

    def end(self) -> None:
        """Leave the bar as it is."""
        if self._line is not None:
            self._line.close()
            self._line = None


def make_display(title: str = "", console: Console | None = None) -> Display:
    """A bar in a terminal, and lines elsewhere."""
    console = console or Console(stderr=True)
    return Bar(console, title) if console.is_terminal else Lines(console)


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
