"""Every table and figure of the paper, what its words claim, and what it leaves open: a file for each."""

from __future__ import annotations

from selattn.errors import SelattnError, shortened
from selattn.reproduction.experiments import (
    bilinear,
    bos_constraint,
    comparison,
    context_size,
    course,
    efficiency,
    extra_heads,
    local,
    model_size,
    needle,
    negative_selection,
    self_impact,
    self_masking,
    sparse,
)
from selattn.reproduction.frame import Experiment
from selattn.utils.suggest import advice

_ALL = (
    course.EXPERIMENT,
    efficiency.EXPERIMENT,
    comparison.EXPERIMENT,
    needle.EXPERIMENT,
    context_size.EXPERIMENT,
    model_size.EXPERIMENT,
    extra_heads.EXPERIMENT,
    bilinear.EXPERIMENT,
    self_impact.EXPERIMENT,
    bos_constraint.EXPERIMENT,
    self_masking.EXPERIMENT,
    negative_selection.EXPERIMENT,
    local.EXPERIMENT,
    sparse.EXPERIMENT,
)
EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in _ALL}


def find_experiment(name: str) -> Experiment:
    """The experiment of that name; for a mistyped one the nearest is suggested."""
    if name not in EXPERIMENTS:
        hint = advice(name, EXPERIMENTS, "see 'selattn reproduce --list'")
        raise SelattnError(f"unknown experiment {shortened(name)!r}; {hint}")
    return EXPERIMENTS[name]
