"""What the paper left open: budgets that shrink during training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lab.engine.frame import Cell, Claim, Experiment, Found, Need
from lab.engine.lab import Lab
from lab.engine.pruned import loss_with
from lab.engine.trio import with_seeds
from lab.engine.verdicts import differences
from lab.runs.scales import Scale
from selattn.models.loading import load
from selattn.training.config import Shrink

USUAL, SHRINKING = "whole cache in training", "budgets shrink in training"


def _budget(scale: Scale) -> int:
    return max(scale.context // 64, 4)


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """Selective models from new weights, with and without budgets that shrink over three quarters of the run."""
    run = scale.run("selective", cache_budgets=[_budget(scale)] * scale.d)
    shrink = Shrink(steps=max(scale.steps * 3 // 4, 1))
    return with_seeds({USUAL: scale.run("selective"), SHRINKING: dataclasses.replace(run, shrink=shrink)}, seeds)


def evaluate(lab: Lab) -> Found:
    """The loss of both with the budgets in force."""
    budget = _budget(lab.scale)
    found = {}
    for name in (USUAL, SHRINKING):
        models = [load(lab.trained(name, seed).model) for seed in lab.seeds]
        found[name] = tuple(loss_with(lab, model, [budget] * model.description.layers) for model in models)
    cells = tuple(
        Cell(name, f"loss with {budget} tokens a layer, unseen documents", each) for name, each in found.items()
    )
    claim = Claim(
        "Budgets that shrink in training make a better pruned model.", differences(found[USUAL], found[SHRINKING]),
        "loss of the usual model less that of the one whose budgets shrank, nats",
    )  # fmt: skip
    return Found(cells, (claim,), ("The same budget in every layer.",))


EXPERIMENT = Experiment(
    name="shrinking",
    paper="open: a context that shrinks during training",
    sentence="budgets that shrink during training",
    needs=needs,
    evaluate=evaluate,
)
