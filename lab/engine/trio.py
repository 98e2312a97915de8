"""The three models that most is measured on: standard, selective, and selective with the memory loss.

Those of one seed see the same data in the same order. On a laptop they are the zoo's, with rotary positions: learned
ones give a young selective model the recency that its rival lacks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lab.engine.frame import Need
from lab.engine.lab import of_seed
from lab.runs.scales import Scale
from selattn.training.config import RunConfig

KINDS = ("standard", "selective", "memory")
TITLES = {"standard": "standard", "selective": "selective", "memory": "selective, memory loss"}
WHO = {  # as the subject of a claim
    "standard": "Standard attention",
    "selective": "Selective attention",
    "memory": "Selective attention with the memory loss",
}


def trio(
    scale: Scale,
    seeds: Sequence[int],
    positions: str | None = None,
    steps: int | None = None,
    kinds: Sequence[str] = KINDS,
) -> dict[str, Need]:
    """The needs, `standard, seed 0` and so on, of the longest runs of a scale unless told otherwise."""
    runs = {kind: scale.run(kind, positions=positions, steps=steps or scale.long_steps) for kind in kinds}
    return with_seeds(runs, seeds)


def with_seeds(runs: dict[str, RunConfig], seeds: Sequence[int]) -> dict[str, Need]:
    """A need for each run and seed, those of one seed together: that is the order in which they are trained."""
    return {
        of_seed(name, seed): Need(dataclasses.replace(run, seed=seed)) for seed in seeds for name, run in runs.items()
    }
