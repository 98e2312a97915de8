"""What the paper left open: a trained standard model fine-tuned into a selective one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lab.engine.frame import Cell, Claim, Experiment, Found, Need
from lab.engine.lab import Lab, of_seed
from lab.engine.verdicts import differences
from lab.runs.scales import Scale
from selattn.training.config import RunConfig, Start

BEFORE, CONTROL, TUNED = "standard", "standard, trained on", "made selective, trained on"


def _more(scale: Scale, kind: str, ramp: int) -> RunConfig:
    """A third as many steps again, with a third of the learning rate; selection is ramped up in half of them."""
    run = scale.run(kind, steps=max(scale.steps // 3, 2), lr=scale.lr / 3)
    return dataclasses.replace(run, start=Start(ramp=ramp))


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """The standard model, and two that begin with it: one goes on as it is, one begins to select."""
    found: dict[str, Need] = {}
    for seed in seeds:
        standard = Need(dataclasses.replace(scale.run("standard"), seed=seed))
        found[of_seed(BEFORE, seed)] = standard
        for name, kind, ramp in ((CONTROL, "standard", 0), (TUNED, "selective", max(scale.steps // 6, 1))):
            found[of_seed(name, seed)] = Need(dataclasses.replace(_more(scale, kind, ramp), seed=seed), after=standard)
        found[of_seed("selective from the start", seed)] = Need(dataclasses.replace(scale.run("selective"), seed=seed))
    return found


def evaluate(lab: Lab) -> Found:
    """Their losses; the control has seen as many tokens as the one that was made selective."""
    names = (BEFORE, CONTROL, TUNED, "selective from the start")
    losses = {name: lab.losses(name) for name in names}
    cells = tuple(Cell(name, "validation loss", values) for name, values in losses.items())
    claim = Claim(
        "Made selective, a trained standard model gets better than one that is trained on as it is.",
        differences(losses[CONTROL], losses[TUNED]),
        "loss of the control less that of the model that was made selective, nats",
    )
    return Found(cells, (claim,), ("Head 0 selects; its strength is ramped from 0 to 1.",))


EXPERIMENT = Experiment(
    name="fine-tuning",
    paper="open: fine-tuning existing models",
    sentence="a standard model that is fine-tuned into a selective one",
    needs=needs,
    evaluate=evaluate,
    losses_only=True,
)
