"""Appendix A.1: Variable Assignment with larger models, d=8."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lab.engine.frame import Claim
from lab.engine.tasks import IN, NAMES, OUT, Answers, better, solved, task_experiment, task_run
from lab.runs import find_run
from lab.runs.scales import Scale
from lab.tasks import VariableAssignment
from selattn.training.config import RunConfig
from selattn.training.presets import size

_SMALL = VariableAssignment(variables=3, values=100, assignments=16)


def runs(scale: Scale) -> dict[str, RunConfig]:
    """On a laptop the small task of `python -m lab demo`: the paper's own would take days with d=8."""
    if scale.name == "paper":
        found = {kind: find_run(f"variable-assignment-{kind}") for kind in NAMES}
        return {kind: dataclasses.replace(run, model={**run.model, **size(8)}) for kind, run in found.items()}
    if scale.name == "laptop":
        return {kind: task_run(_SMALL, kind, d=8, batch=64, steps=300, every=50, lr=1e-3) for kind in NAMES}
    task = VariableAssignment(variables=3, values=10, assignments=4)
    return {kind: task_run(task, kind, d=3, batch=8, steps=6, every=3, lr=1e-3) for kind in NAMES}


def claims(answers: Answers) -> Sequence[Claim]:
    """As with small models."""
    return (
        solved(answers, "selective", IN, "Selective attention solves it with larger models, too."),
        better(answers, OUT, "Larger standard models do not generalize as well, either."),
    )


EXPERIMENT = task_experiment(
    name="variable-assignment-d8",
    paper="Appendix A.1, d=8",
    sentence="Variable Assignment with larger models",
    runs=runs,
    papers={},
    claims=claims,
    notes=('The paper: "similar results" with d=8. The laptop has 100 values and 16 assignments, the smoke test d=3.',),
)
