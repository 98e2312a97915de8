"""One view over all runs of several experiments: which one is trained, how much of all is done, the time left."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console

from lab.engine.experiment import Need
from selattn.training.config import RunConfig, TextData
from selattn.utils.progress import Progress, ProgressLine

SPEED = 9e10  # products and sums a second of 2 cores of a laptop, as `selattn train` gets from them with small models
_START = 3.0  # seconds before the first step
_SECONDS = 20.0  # between two lines, where there is no terminal


def products(run: RunConfig) -> float:
    """Products and sums of a whole training, forward and backward; the models of fine-tuning count as the zoo's."""
    model, data = run.model, run.data
    width = int(model.get("hidden_size", model.get("d_model", 192)))
    layers = int(model.get("num_hidden_layers", 2 * int(model["num_layers"]) if "num_layers" in model else 3))
    heads = int(model.get("num_attention_heads", width // 64 or 1)) * int(model.get("head_dim", 64))
    vocabulary = data.vocabulary if isinstance(data, TextData) else data.vocab_size
    weights = layers * (4 * width * heads + 8 * width * width) + vocabulary * width
    attention = 2 * layers * heads * data.context / 2
    tokens = run.schedule.steps * run.batch.size * data.context
    return 6.0 * tokens * (weights + attention)


def seconds(needs: Iterable[Need]) -> float:
    """Of training all of these, each once, on 2 cores."""
    return sum(_START + products(need.run) / SPEED for need in {need.key: need for need in needs}.values())


def in_words(seconds: float) -> str:
    """A time as a reader would say it."""
    for unit, size in (("years", 31_557_600), ("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"


class Overview:
    """Shows nothing of the runs; `ShownOverview` does."""

    def begin(self, needs: Mapping[str, Need]) -> None:
        """These are to be trained, by name."""

    def display(self, name: str, need: Need) -> Progress:
        """What the training of one of them reports to."""
        return Progress()

    def say(self, text: str) -> None:
        """Something else has happened."""

    def end(self) -> None:
        """All runs have ended, or one was interrupted; called again it does nothing."""


class ShownOverview(Overview):
    """A bar in a terminal and lines elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self._bar: ProgressLine | None = None
        self._total = self._done = self._earlier = 0.0
        self._runs = self._number = 0
        self._said = self._begun = 0.0

    def begin(self, needs: Mapping[str, Need]) -> None:
        """All that has to be trained, in products: a step of a large model counts for more than one of a small one."""
        self._runs, self._number = len(needs), 0
        self._total, self._done, self._earlier = sum(products(need.run) for need in needs.values()), 0.0, 0.0
        self._begun = time.monotonic()
        if needs and self.console.is_terminal:
            self._bar = ProgressLine("training, % of all runs", 100, keep=True, console=self.console).start()

    def display(self, name: str, need: Need) -> Progress:
        """One for the next run; one that comes up while an experiment measures is counted by itself."""
        if self._number >= self._runs:
            self.begin({name: need})
        self._number += 1
        return _Part(self, f"run {self._number} of {self._runs}: {name}", products(need.run))

    def say(self, text: str) -> None:
        """A line of its own."""
        self.console.print(text, soft_wrap=True, markup=False)

    def moved(self, title: str, share: float, text: str = "") -> None:
        """So much of one more run is done; `share` is of all products."""
        done = self._done + share
        if self._bar is not None:
            self._bar.update(100 * done / max(self._total, 1.0), f"{title} {text}")
            return
        now = time.monotonic()
        if now - self._said < _SECONDS:
            return
        self._said = now
        here = done - self._earlier
        left = (now - self._begun) / here * (self._total - done) if here > 0 else None
        ahead = "" if left is None else f"  left {datetime.timedelta(seconds=round(left))}"
        self.say(f"{title}  {text}  {done / max(self._total, 1.0):.0%} of all{ahead}")

    def resumed(self, share: float) -> None:
        """So much of the run that begins now was done before: it says nothing about the time that is left."""
        self._earlier += share

    def finished(self, share: float) -> None:
        """A run has ended."""
        self._done += share
        if self._number >= self._runs:
            self.end()

    def end(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class _Part(Progress):
    """What a training reports to: a part of the overview."""

    def __init__(self, overview: ShownOverview, title: str, weight: float) -> None:
        self._overview, self._title, self._weight = overview, title, weight
        self._step, self._steps, self._ended, self._text = 0.0, 1.0, False, ""

    def begin(self, total: float | None, title: str = "", done: float = 0, **how: Any) -> None:
        self._step, self._steps = done, total or 1
        self._overview.resumed(self._weight * done / self._steps)
        self._overview.moved(self._title, self._weight * done / self._steps)

    def advance(self, by: float = 1, text: str | None = None) -> None:
        self._step += by
        if by:
            told = f"step {self._step:,.0f}/{self._steps:,.0f}{self._text}"
            self._overview.moved(self._title, self._weight * self._step / self._steps, told)

    def say(self, text: str) -> None:
        if text.startswith("step "):  # an evaluation, which stands behind the steps from then on
            self._text = f"  {text.partition('  ')[2]}"
        else:
            self._overview.say(text)

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._overview.finished(self._weight)
