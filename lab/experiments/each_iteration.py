"""What the paper left open: training on in each iteration of the search, rather than after it."""

from __future__ import annotations

from collections.abc import Sequence

from lab.engine.frame import Cell, Claim, Experiment, Found, Need
from lab.engine.lab import Lab, of_seed
from lab.engine.pruned import loss_with, search
from lab.engine.trio import with_seeds
from lab.engine.verdicts import differences
from lab.experiments.after_pruning import SHRUNK, more
from lab.runs.scales import Scale
from selattn.evaluation.tradeoff import nearest
from selattn.models.loading import load
from selattn.pruning.folder import read_path

ROUNDS = 3


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """The selective model; what is trained on depends on the budgets that are found."""
    return with_seeds({"selective": scale.run("selective")}, seeds)


def evaluate(lab: Lab) -> Found:
    """Prune and train in turn, down to the same size as pruning first and training then, with as many steps in all."""
    scale = lab.scale
    last, steps = max(scale.context // SHRUNK, 4), max(scale.steps // 25 // ROUNDS, 1)
    sizes = [round(scale.context * (last / scale.context) ** (turn / ROUNDS)) for turn in range(1, ROUNDS + 1)]
    turns, once = [], []
    for seed in lab.seeds:
        base = model = lab.trained("selective", seed)
        need = base.need
        budgets: tuple[int, ...] = ()
        for turn, size in enumerate(sizes):
            budgets = nearest([step.budgets for step in read_path(search(lab, model))], [size])[0]
            need = Need(more(scale, steps, budgets, seed), after=need)
            model = lab.train(of_seed(f"turn {turn + 1}", seed), need)
        turns.append(loss_with(lab, load(model.model), budgets))
        found = nearest([step.budgets for step in read_path(search(lab, base))], [last])[0]
        whole = Need(more(scale, steps * ROUNDS, found, seed), after=base.need)
        once.append(loss_with(lab, load(lab.train(of_seed("once", seed), whole).model), found))
    lab.settings |= {"mean_budgets": sizes, "steps": steps}
    cells = (
        Cell("pruned and trained in turn", "loss with the budgets, unseen documents", tuple(turns)),
        Cell("pruned, then trained", "loss with the budgets, unseen documents", tuple(once)),
    )
    claim = Claim(
        "Training on in each iteration is better than after the last.", differences(tuple(once), tuple(turns)),
        "loss of pruned, then trained less that of pruned and trained in turn, nats",
    )  # fmt: skip
    return Found(cells, (claim,), (f"Mean budgets {sizes}, {steps} steps after each; as many steps in all for both.",))


EXPERIMENT = Experiment(
    name="each-iteration",
    paper="open: training in each iteration of the search",
    sentence="pruning and training in turn beside pruning first and training then",
    needs=needs,
    evaluate=evaluate,
)
