"""The same search over rows that are at hand, of a synthetic task for example: nothing is read, and nothing is written.

`prune` is for texts, and can be interrupted and go on.
"""

from __future__ import annotations

from collections.abc import Sequence

from selattn.cache import Policy
from selattn.evaluation.batches import Batch
from selattn.evaluation.searches import Step
from selattn.models.seam import LanguageModel
from selattn.pruning.job import shown
from selattn.pruning.path import chosen
from selattn.pruning.search import Procedure, first_step, steps
from selattn.pruning.until import Until
from selattn.pruning.whole import make_trials
from selattn.utils.distributed import Team
from selattn.utils.progress import Progress


def search_rows(
    model: LanguageModel,
    batches: Sequence[Batch],
    until: Until,
    procedure: Procedure,
    *,
    policy: str | Policy = "selective",
    progress: Progress | None = None,
) -> tuple[int, list[Step]]:
    """The number of the iteration whose budgets meet the threshold last, and the path up to there and one further.

    Args:
        model: in evaluation mode.
        batches: what is searched on.
        until: where the search stops; the loss of a baseline has to be given as `loss`.
        procedure: how it proceeds.
        policy: who leaves when a layer is full.
        progress: is told how it proceeds; None shows nothing.
    """
    layers = model.description.layers
    until.check_size(layers, procedure.context, procedure.smallest)
    trials = make_trials(model, batches, (procedure.context,) * layers, policy, Team())
    path = [first_step(trials)]
    until.check_loss(path[0].loss)
    progress = progress or Progress()
    progress.begin(procedure.iterations(layers), "iteration", sure=False)
    for step in steps(trials, procedure, past=tuple(path)):
        path.append(step)
        progress.advance(1, shown(step))
        if chosen([path[0], step], until, procedure.context)[1]:
            break
    progress.end()
    return chosen(path, until, procedure.context)[0], path
