"""What the paper did not try: the memory loss at the end of training instead of from its start."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lab.engine.frame import Cell, Claim, Experiment, Found, Need
from lab.engine.lab import Lab, of_seed
from lab.engine.pruned import GAIN, at_limit, search, within_own
from lab.engine.store import Trained
from lab.engine.trio import trio
from lab.engine.verdicts import differences
from lab.runs.scales import Scale

STANDARD, CONTROL, LATE = "standard, trained on", "selective, trained on", "selective, memory loss at the end"
EARLY = "memory"  # from the start, and not trained on
_KINDS = {STANDARD: ("standard", "standard"), CONTROL: ("selective", "selective"), LATE: ("selective", "memory")}


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """The three models that are trained longest, and a fifteenth more of it: standard, and selective twice.

    The learning rate is a third of what it was.
    """
    found = trio(scale, seeds)
    steps = max(scale.long_steps // 15, 2)
    for seed in seeds:
        for name, (before, kind) in _KINDS.items():
            run = dataclasses.replace(scale.run(kind, steps=steps, lr=scale.lr / 3), seed=seed)
            found[of_seed(name, seed)] = Need(run, after=found[of_seed(before, seed)])
    return found


def evaluate(lab: Lab) -> Found:
    """Loss and memory of each, beside a standard model that was trained on for as long."""
    rows = {CONTROL: CONTROL, LATE: LATE, EARLY: "selective, memory loss from the start"}
    losses = {name: lab.losses(name) for name in (STANDARD, *rows)}
    cells = [Cell(STANDARD, "validation loss", losses[STANDARD])]
    own, equal = {}, {}
    for name, row in rows.items():
        models = [(lab.trained(name, seed), lab.trained(STANDARD, seed)) for seed in lab.seeds]
        own[name] = tuple(within_own(lab, model) for model, _ in models)
        equal[name] = tuple(_equal(lab, model, standard) for model, standard in models)
        cells += [
            Cell(row, "validation loss", losses[name]),
            Cell(row, f"times less memory within {GAIN} nats of its own", tuple(x for x, _ in own[name]), digits=1),
            Cell(row, "what that costs on unseen documents, nats", tuple(x for _, x in own[name]), digits=4),
            Cell(row, f"times less memory at the loss of {STANDARD}", equal[name], digits=1),
        ]
    more = [tuple(value or 0.0 for value in equal[name]) for name in (LATE, CONTROL)]
    claims = (
        Claim(
            "Added at the end, the memory loss makes the cache smaller.", differences(more[0], more[1]),
            f"factor at the loss of {STANDARD} less that of {CONTROL} (0: no factor)", digits=1,
        ),
        Claim(
            "Added at the end, it costs less loss than from the start.", differences(losses[EARLY], losses[LATE]),
            "loss with it from the start, not trained on, less that with it at the end, nats",
        ),
        Claim(
            "Added at the end, it leaves the model better than the standard one.",
            differences(losses[STANDARD], losses[LATE]), f"loss of {STANDARD} less that with it at the end, nats",
        ),
    )  # fmt: skip
    notes = ("Factors are those of the budgets searched, on the search set; trained on means a fifteenth more steps.",)
    return Found(tuple(cells), claims, notes)


def _equal(lab: Lab, model: Trained, standard: Trained) -> float | None:
    """How far it is pruned at the standard model's loss; None if it is above that with everything kept."""
    found = at_limit(lab, model, search(lab, model), standard)
    return None if found is None else found.factor


EXPERIMENT = Experiment(
    name="memory-late",
    paper="open: when the memory loss begins",
    sentence="the memory loss at the end of training beside the memory loss from its start",
    needs=needs,
    evaluate=evaluate,
)
