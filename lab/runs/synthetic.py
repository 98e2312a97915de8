"""Variable Assignment, Copy and Parity*: at the paper's scale (d=3, batch 2,048, 65,536 steps), and small."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lab.tasks import Copy, Parity, Task, VariableAssignment
from selattn.training.config import Batching, Checkpoints, Evaluation, Optimizer, RunConfig, Schedule
from selattn.training.presets import KINDS, size

_TASKS: dict[str, Task] = {
    "variable-assignment": VariableAssignment(variables=3, values=1000, assignments=128),
    "variable-assignment-10x10": VariableAssignment.ten_by_ten(),
    "copy": Copy(),
    "parity": Parity(),
}
# For minutes on a laptop, where the two kinds of attention are still told apart by Variable Assignment.
SMALL_ASSIGNMENT = VariableAssignment(variables=3, values=100, assignments=16)


def at_paper_scale(name: str, task: Task, kind: str) -> RunConfig:
    """A run of sections A.1 and A.2."""
    return RunConfig(
        name,
        data=task,
        model=size(3) | KINDS[kind],
        batch=Batching(size=2048),
        schedule=Schedule(steps=65_536),
        evaluation=Evaluation(every=500, rows=2048, batch=256),
    )


def small_assignment(name: str, kind: str, d: int = 2) -> RunConfig:
    """Both kinds take the same steps, so that they can be compared at each."""
    return _small(name, SMALL_ASSIGNMENT, kind, d, lr=2e-3, steps=200, batch=256, evaluate=25)


def small_copy(name: str, kind: str) -> RunConfig:
    """The paper's task; the run ends when it is solved."""
    return _small(name, Copy(), kind, lr=3e-3, steps=4_000, batch=64, evaluate=100, target=1.0)


def small_parity(name: str, kind: str) -> RunConfig:
    """The paper's task; the run ends when it is solved."""
    return _small(name, Parity(), kind, lr=2e-3, steps=400, batch=64, evaluate=25, target=1.0)


def _small(
    name: str,
    task: Task,
    kind: str,
    d: int = 2,
    *,
    lr: float,
    steps: int,
    batch: int,
    evaluate: int,
    target: float | None = None,
) -> RunConfig:
    """A run for a laptop. Two layers are enough for these tasks, and three times as fast as the paper's three."""
    return RunConfig(
        name,
        data=task,
        model=size(d) | KINDS[kind],
        batch=Batching(size=batch),
        optimizer=Optimizer(lr=lr),
        schedule=Schedule(steps=steps, warmup=20),
        evaluation=Evaluation(every=evaluate, rows=1024, batch=256, target=target),
        checkpoints=Checkpoints(every=2 * evaluate),
        log_every=5,
    )


_KINDS = ("selective", "standard")
_SMALL = {
    "variable-assignment-small": small_assignment,
    "copy-small": small_copy,
    "parity-small": small_parity,
}
RUNS: dict[str, Callable[[], RunConfig]] = {
    **{
        f"{name}-{kind}": partial(at_paper_scale, f"{name}-{kind}", task, kind)
        for name, task in _TASKS.items()
        for kind in _KINDS
    },
    **{f"{name}-{kind}": partial(make, f"{name}-{kind}", kind) for name, make in _SMALL.items() for kind in _KINDS},
}
