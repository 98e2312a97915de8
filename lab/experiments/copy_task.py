"""Appendix A.2: Copy, which needs everything until it is copied."""

from __future__ import annotations

from collections.abc import Sequence

from lab.engine.frame import Claim
from lab.engine.tasks import IN, NAMES, Answers, solved, task_experiment, task_run
from lab.runs import find_run
from lab.runs.scales import Scale
from lab.tasks import Copy
from selattn.training.config import RunConfig


def runs(scale: Scale) -> dict[str, RunConfig]:
    """The paper's task; on a laptop a small model until it is solved."""
    if scale.name == "smoke":
        return {kind: task_run(Copy(longest=4), kind, d=1, batch=8, steps=8, every=4, lr=3e-3) for kind in NAMES}
    small = "-small" if scale.name == "laptop" else ""
    return {kind: find_run(f"copy{small}-{kind}") for kind in NAMES}


def claims(answers: Answers) -> Sequence[Claim]:
    """Both kinds solve it."""
    return tuple(solved(answers, kind, IN, f"{kind.capitalize()} attention solves Copy.") for kind in NAMES)


EXPERIMENT = task_experiment(
    name="copy",
    paper="Appendix A.2, Copy",
    sentence="Copy with standard and selective attention",
    runs=runs,
    papers={(kind, IN, "accuracy"): 1.0 for kind in NAMES},
    claims=claims,
)
