"""How long a run takes, about: its products, and how many of them a machine does in a second."""

from __future__ import annotations

from collections.abc import Iterable

from lab.engine.frame import Need
from selattn.training.config import RunConfig, TextData

SPEED = 9e10  # products and sums a second of 2 cores of a laptop, as `selattn train` gets from them with small models
_START = 3.0  # seconds before the first step


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
