"""Variable Assignment, Copy and Parity*: at the paper's scale (d=3, batch 2,048, 65,536 steps), and small."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from selattn.data.synthetic import Copy, Parity, Task, VariableAssignment
from selattn.train.config import Batch, Checkpoints, Evaluation, Optimiser, RunConfig, Schedule
from selattn.train.runs.kinds import KINDS, size

_TASKS: dict[str, Task] = {
    "variable-assignment": VariableAssignment(variables=3, values=1000, assignments=128),
    "variable-assignment-10x10": VariableAssignment.ten_by_ten(),
    "copy": Copy(),
    "parity": Parity(),
}
# Small enough for minutes on a laptop, and still told apart by the two kinds of attention.
SMALL: dict[str, Task] = {
    "variable-assignment-small": VariableAssignment(variables=3, values=100, assignments=16),
    "copy-small": Copy(longest=8),
    "parity-small": Parity(bits=16),
}


def at_paper_scale(name: str, task: Task, kind: str) -> RunConfig:
    """A run of sections A.1 and A.2."""
    return RunConfig(
        name,
        data=task,
        model=size(3) | KINDS[kind],
        batch=Batch(size=2048),
        schedule=Schedule(steps=65_536),
        evaluation=Evaluation(every=500, rows=2048, batch=256),
    )


def small(name: str, task: Task, kind: str, d: int = 2, steps: int = 200) -> RunConfig:
    """A run for a laptop. Two layers are enough for these tasks, and three times as fast as the paper's three."""
    return RunConfig(
        name,
        data=task,
        model=size(d) | KINDS[kind],
        batch=Batch(size=256),
        optimiser=Optimiser(lr=2e-3),
        schedule=Schedule(steps=steps, warmup=20),
        evaluation=Evaluation(every=25, rows=1024, batch=256),
        checkpoints=Checkpoints(every=50),
        log_every=5,
    )


RUNS: dict[str, Callable[[], RunConfig]] = {
    f"{name}-{kind}": partial(make, f"{name}-{kind}", task, kind)
    for tasks, make in ((_TASKS, at_paper_scale), (SMALL, small))
    for name, task in tasks.items()
    for kind in ("selective", "standard")
}
