"""How long trainings take, and one progress over all that several experiments need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lab.engine.experiment import Need
from selattn.training.config import RunConfig, TextData
from selattn.utils.progress import Progress

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
    """All trainings of several experiments as one work of 100 percent.

    A step counts by its products, so that one of a large model is a larger share than one of a small model.

    Args:
        progress: is told of it; None shows nothing.
    """

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = progress or Progress()
        self._runs = self._number = 0
        self._total = 1.0

    def begin(self, needs: Mapping[str, Need]) -> None:
        """These are to be trained, by name."""
        self._runs, self._number = len(needs), 0
        self._total = sum(products(need.run) for need in needs.values())
        if needs:
            self.progress.begin(100, "training, % of all runs", every=_SECONDS)

    def display(self, name: str, need: Need) -> Progress:
        """The progress of the next run; one that was not announced is a work of its own."""
        if self._number >= self._runs:
            self.begin({name: need})
        self._number += 1
        share = 100 * products(need.run) / self._total
        last = self._number == self._runs
        return _Part(self.progress, f"run {self._number} of {self._runs}: {name}", share, last)

    def say(self, text: str) -> None:
        """Something else has happened."""
        self.progress.say(text)

    def end(self) -> None:
        """All runs have ended, or one was interrupted; called again it does nothing."""
        self.progress.end()


class _Part(Progress):
    """The progress of a training as a share of the whole."""

    def __init__(self, whole: Progress, title: str, share: float, last: bool) -> None:
        self._whole, self._title, self._share, self._last = whole, title, share, last
        self._step, self._steps, self._evaluation = 0.0, 1.0, ""

    def begin(self, total: float | None, title: str = "", done: float = 0, **how: Any) -> None:
        self._steps = total or 1
        self.advance(done)

    def advance(self, by: float = 1, text: str | None = None) -> None:
        if by or not self._step:
            self._step += by
            told = f"{self._title}  step {self._step:,.0f}/{self._steps:,.0f}{self._evaluation}"
            self._whole.advance(self._share * by / self._steps, told)

    def say(self, text: str) -> None:
        if text.startswith("step "):  # an evaluation, which stands behind the steps from then on
            self._evaluation = f"  {text.partition('  ')[2]}"
        else:
            self._whole.say(text)

    def end(self) -> None:
        if self._last:
            self._whole.end()
