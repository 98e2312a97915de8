"""What the paper did not tune: the weight of the memory loss, 0.02 beside its 0.1."""

from __future__ import annotations

from collections.abc import Sequence

from lab.engine.frame import Cell, Claim, Experiment, Found, Need
from lab.engine.lab import Lab
from lab.engine.pruned import GAIN, within_own
from lab.engine.trio import with_seeds
from lab.engine.verdicts import differences
from lab.runs.scales import Scale

EPSILONS = (0.0, 0.02, 0.1, 0.3)


def _name(epsilon: float) -> str:
    return f"epsilon {epsilon:g}"


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """Selective models with more and more weight on memory.

    The longest runs of a scale: what the memory loss costs, looking far back, is learned late.
    """
    tried = EPSILONS if scale.name == "paper" else EPSILONS[:3]
    long = scale.long_steps
    return with_seeds({_name(each): scale.run("selective", steps=long, memory_epsilon=each) for each in tried}, seeds)


def evaluate(lab: Lab) -> Found:
    """Loss, and how far each can be pruned within a little of its own loss, on documents that were not searched on."""
    tried = list(dict.fromkeys(name.partition(",")[0] for name in lab.needs))
    cells, losses, factors = [], {}, {}
    for name in tried:
        found = [within_own(lab, lab.trained(name, seed)) for seed in lab.seeds]
        losses[name], factors[name] = lab.losses(name), tuple(factor for factor, _ in found)
        cells.append(Cell(name, "validation loss", losses[name]))
        cells.append(Cell(name, f"times less memory within {GAIN} nats (search)", factors[name], digits=1))
        cells.append(
            Cell(name, "what that costs on unseen documents, nats", tuple(cost for _, cost in found), digits=4)
        )
    small, usual = _name(0.02), _name(0.1)
    claims = (
        Claim(
            "epsilon 0.02 costs less loss than 0.1.", differences(losses[usual], losses[small]),
            "loss with 0.1 less that with 0.02, nats",
        ),
        Claim(
            "The memory loss of 0.1 makes the cache smaller.",
            tuple(a / b for a, b in zip(factors[usual], factors[_name(0.0)], strict=True)),
            "factor with 0.1 over the factor without", than=1.0, digits=2,
        ),
    )  # fmt: skip
    return Found(tuple(cells), claims, ("Each model is pruned to its own loss here, not to the standard model's.",))


EXPERIMENT = Experiment(
    name="epsilon",
    paper="open: the weight of the memory loss",
    sentence="the memory loss with other weights",
    needs=needs,
    evaluate=evaluate,
)
