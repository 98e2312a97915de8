"""Language models that train on a laptop in minutes, on the text that comes with Python unless another is named."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from selattn.training.config import Batching, Checkpoints, Evaluation, Optimizer, RunConfig, Schedule, TextData
from selattn.training.runs.kinds import KINDS, size


def small(name: str, kind: str) -> RunConfig:
    """d=3 on rows of 256 tokens: about two and a half million of them."""
    return RunConfig(
        name,
        data=TextData(vocabulary=4096, layout="packed", context=256),
        model=size(3) | KINDS[kind],
        batch=Batching(size=8),
        optimizer=Optimizer(lr=2e-3),
        schedule=Schedule(steps=1_200, warmup=100),
        evaluation=Evaluation(every=200, rows=256, batch=16),
        checkpoints=Checkpoints(every=100),
        log_every=25,
    )


RUNS: dict[str, Callable[[], RunConfig]] = {
    f"text-small-{kind}": partial(small, f"text-small-{kind}", kind) for kind in KINDS
}
