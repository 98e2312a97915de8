"""The models of the zoo. Give the text as `data.source=PATH`; see docs/training.md for the one that the zoo has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from selattn.train.config import Batch, Checkpoints, Evaluation, Optimiser, RunConfig, Schedule, Text
from selattn.train.runs import synthetic
from selattn.train.runs.kinds import KINDS, size


def language_model(name: str, kind: str, context: int, batch: int) -> RunConfig:
    """d=4. Six models may take 40 MB: so the vocabulary is small and, unlike in the paper, tied to the output."""
    return RunConfig(
        name,
        data=Text(vocabulary=3072, layout="packed", context=context),
        model={**size(4), **KINDS[kind], "tie_word_embeddings": True},
        batch=Batch(size=batch),
        optimiser=Optimiser(lr=2e-3),
        schedule=Schedule(steps=2_000, warmup=200),
        evaluation=Evaluation(every=250, rows=256, batch=8),
        checkpoints=Checkpoints(every=100),
        log_every=25,
    )


def variable_assignment(name: str, kind: str) -> RunConfig:
    """The small task of `selattn demo`, with the paper's d=3."""
    return synthetic.small(name, synthetic.SMALL["variable-assignment-small"], kind, d=3)


RUNS: dict[str, Callable[[], RunConfig]] = {
    **{f"zoo-{kind}": partial(language_model, f"zoo-{kind}", kind, 512, 8) for kind in KINDS},
    "zoo-selective-1024": partial(language_model, "zoo-selective-1024", "selective", 1024, 4),
    **{
        f"zoo-variable-assignment-{kind}": partial(variable_assignment, f"zoo-variable-assignment-{kind}", kind)
        for kind in ("selective", "standard")
    },
}
