"""Appendix A.1: Variable Assignment with 10 variables and 10 values, the paper's other setting."""

from __future__ import annotations

from collections.abc import Sequence

from lab.engine.frame import Claim
from lab.engine.tasks import IN, NAMES, OUT, Answers, better, solved, task_experiment, task_run
from lab.runs import find_run
from lab.runs.scales import Scale
from lab.tasks import VariableAssignment
from selattn.training.config import RunConfig


def runs(scale: Scale) -> dict[str, RunConfig]:
    """The number of assignments is open in the paper: 128 as in its other setting."""
    if scale.name == "paper":
        return {kind: find_run(f"variable-assignment-10x10-{kind}") for kind in NAMES}
    if scale.name == "laptop":
        task = VariableAssignment.ten_by_ten()
        return {
            kind: task_run(task, kind, d=3, batch=64, steps=1_000, every=100, lr=2e-3, target=1.0) for kind in NAMES
        }
    task = VariableAssignment.ten_by_ten(assignments=4)
    return {kind: task_run(task, kind, d=2, batch=16, steps=8, every=4, lr=2e-3) for kind in NAMES}


def claims(answers: Answers) -> Sequence[Claim]:
    """As in the other setting."""
    return (
        solved(answers, "selective", IN, "Selective attention solves the 10 x 10 setting, too."),
        better(answers, OUT, "Standard attention does not generalize as well there."),
    )


EXPERIMENT = task_experiment(
    name="variable-assignment-10x10",
    paper="Appendix A.1, other settings",
    sentence="Variable Assignment with 10 variables and 10 values",
    runs=runs,
    papers={},
    claims=claims,
    early=1_000,
    notes=('The paper: "similar results in other settings".',),
)
