"""The models of the zoo. Give the text as `data.source=PATH`; see docs/training.md for the one that the zoo has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lab.runs import synthetic
from selattn.training.config import Batching, Checkpoints, Evaluation, Optimizer, RunConfig, Schedule, TextData
from selattn.training.presets import KINDS, size

# Settings that make of a run here what the zoo had before: the paper's learned positions, and 3 million tokens.
YOUNG = ("model.positions=learned", "schedule.steps=1500", "evaluation.every=100")


def language_model(name: str, kind: str, context: int, batch: int) -> RunConfig:
    """d=3 on 15 million tokens, small enough for a laptop and for a repository.

    Unlike in the paper the vocabulary is tied to the output, and a step sees only 2,048 tokens: where tokens are few,
    more steps learn more than larger ones. Positions are rotary: F grows with distance, and so gives a young selective
    model with learned positions a recency that its standard rival lacks. `YOUNG` makes the paper's positions of it.
    """
    return RunConfig(
        name,
        data=TextData(vocabulary=3072, layout="packed", context=context),
        model={**size(3), **KINDS[kind], "tie_word_embeddings": True, "positions": "rotary"},
        batch=Batching(size=batch),
        optimizer=Optimizer(lr=3e-3),
        schedule=Schedule(steps=7_320, warmup=100),
        evaluation=Evaluation(every=488, rows=128, batch=8),  # a million tokens
        checkpoints=Checkpoints(every=100),
        log_every=10,
    )


def variable_assignment(name: str, kind: str) -> RunConfig:
    """The small task of `python -m lab demo`, with the paper's d=3."""
    return synthetic.small_assignment(name, kind, d=3)


RUNS: dict[str, Callable[[], RunConfig]] = {
    **{f"zoo-{kind}": partial(language_model, f"zoo-{kind}", kind, 512, 4) for kind in KINDS},
    "zoo-memory-2048": partial(language_model, "zoo-memory-2048", "memory", 2048, 1),
    **{
        f"zoo-variable-assignment-{kind}": partial(variable_assignment, f"zoo-variable-assignment-{kind}", kind)
        for kind in ("selective", "standard")
    },
}
