"""What the paper left open: training on after the budgets have been set."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from lab.engine.frame import Cell, Claim, Experiment, Found, Need
from lab.engine.lab import Lab, of_seed
from lab.engine.pruned import loss_with, search
from lab.engine.trio import with_seeds
from lab.engine.verdicts import differences
from lab.runs.scales import Scale
from selattn.evaluation.tradeoff import nearest
from selattn.models.loading import load
from selattn.pruning.folder import read_path
from selattn.training.config import RunConfig

SHRUNK = 64  # the context over the mean budget, where that is possible


def more(scale: Scale, steps: int, budgets: Sequence[int] | None, seed: int) -> RunConfig:
    """A few steps more with a tenth of the learning rate, with these budgets in force."""
    model: dict[str, Any] = {} if budgets is None else {"cache_budgets": list(budgets)}
    return dataclasses.replace(scale.run("selective", steps=steps, lr=scale.lr / 10, **model), seed=seed)


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """The selective model; what is trained on depends on the budgets that are found."""
    return with_seeds({"selective": scale.run("selective")}, seeds)


def evaluate(lab: Lab) -> Found:
    """The loss with the budgets before, after training with them in force, and after training without them."""
    scale = lab.scale
    size, steps = max(scale.context // SHRUNK, 4), max(scale.steps // 25, 2)
    rows: dict[str, list[float]] = {"as it was": [], "trained with the budgets": [], "trained without": []}
    for seed in lab.seeds:
        base = lab.trained("selective", seed)
        budgets = nearest([step.budgets for step in read_path(search(lab, base))], [size])[0]
        models = {"as it was": base}
        for name, given in (("trained with the budgets", budgets), ("trained without", None)):
            need = Need(more(scale, steps, given, seed), after=base.need)
            models[name] = lab.train(of_seed(name, seed), need)
        for name, model in models.items():
            rows[name].append(loss_with(lab, load(model.model), budgets))
    lab.settings |= {"mean_budget": size, "steps": steps}
    cells = tuple(Cell(name, "loss with the budgets, unseen documents", tuple(values)) for name, values in rows.items())
    claim = Claim(
        "Training on with the budgets in force helps the pruned model.",
        differences(tuple(rows["trained without"]), tuple(rows["trained with the budgets"])),
        "loss after training without the budgets less that after training with them, nats",
    )
    return Found(cells, (claim,), (f"Budgets of {size} tokens a layer on average; {steps} steps more.",))


EXPERIMENT = Experiment(
    name="after-pruning",
    paper="open: training after pruning",
    sentence="training on after the budgets have been set",
    needs=needs,
    evaluate=evaluate,
)
