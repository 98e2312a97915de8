"""Variable Assignment of growing length: what is solved at one length is trained on at the next.

The paper trains 65,536 steps of 2,048 rows. A laptop has a thousandth of that, so that a model begins with short
sequences. Both kinds of attention have the same lengths, and at most the same steps at each; a model that answers all
of the validation set goes on to the next length. Positions are rotary: learned ones would be new at each length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from lab.engine.experiment import Experiment, Need, of_seed
from lab.engine.lab import Lab
from lab.engine.records import Cell, Claim, Measured, Reproduction, differences
from lab.experiments.synthetic import IN, OUT, SETS, task_run
from lab.scales import PAIR, SELECTIVE, STANDARD, Scale
from lab.tasks import VariableAssignment
from selattn.training.config import RunConfig

_TOKENS = 8_192  # in a step
_SOLVED, _LEARNED = 0.99, 0.5  # accuracy
_LARGEST = "assignments of the longest sequences that are solved"


def _lengths(scale: str) -> tuple[int, ...]:
    """Assignments of a sequence, one stage after another."""
    return (2, 4) if scale == "smoke" else (16, 32, 64, 128)


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """A training for each kind and length, which begins with the model of the length before."""
    found: dict[str, Need] = {}
    lengths = _lengths(scale.name)
    for seed in seeds:
        for kind in PAIR:
            before: Need | None = None
            for length in lengths:
                run = dataclasses.replace(_run(scale, kind, length, lengths[-1]), seed=seed)
                before = found[of_seed(_name(kind, length), seed)] = Need(run, before)
    return found


def _run(scale: Scale, kind: str, length: int, longest: int) -> RunConfig:
    if scale.name == "smoke":
        task = VariableAssignment(variables=3, values=10, assignments=length)
        run = task_run(task, kind, d=1, batch=8, steps=4, every=2, lr=2e-3, target=1.0)
    else:
        task = VariableAssignment(variables=3, values=1000, assignments=length)
        batch = _TOKENS // task.context
        run = task_run(task, kind, d=3, batch=batch, steps=1_000, every=100, lr=2e-3, target=1.0)
        run = dataclasses.replace(run, evaluation=dataclasses.replace(run.evaluation, rows=512))
    positions = VariableAssignment(assignments=longest).context
    return dataclasses.replace(run, model={**run.model, "positions": "rotary", "max_position_embeddings": positions})


def _name(kind: str, length: int) -> str:
    return f"{kind}, {length} assignments"


def evaluate(lab: Lab) -> Measured:
    """Accuracy at the end of each length, and the longest that is solved."""
    cells = []
    lengths = _lengths(lab.scale.name)
    for kind in PAIR:
        solved = [0] * len(lab.seeds)
        for length in lengths:
            records = [lab.trained(_name(kind, length), seed).record for seed in lab.seeds]
            steps = tuple(None if record is None else float(record.steps) for record in records)
            cells.append(Cell(f"{length} assignments, steps", kind, steps, digits=0))
            for name, where in SETS.items():
                right = lab.accuracies(_name(kind, length), name)
                cells.append(Cell(f"{length} assignments, {where}: accuracy", kind, right, digits=1, percent=True))
            here = lab.accuracies(_name(kind, length), IN)
            solved = [length if x is not None and x >= _SOLVED else y for x, y in zip(here, solved, strict=True)]
        cells.append(Cell(_LARGEST, kind, tuple(map(float, solved)), digits=0))
    return Measured(tuple(cells))


def conclude(record: Reproduction) -> Reproduction:
    """For each length: solved in distribution and out of it by selective attention, and not by standard attention."""
    notes = (
        "3 variables and 1,000 values. A model begins with the weights of the length before; it is trained at a length "
        "for 1,000 steps of 8,192 tokens, or until it answers all of the validation set. Out of distribution only 2 "
        "of the values occur. The paper has 128 assignments, 65,536 steps of 2,048 rows, and no growing length.",
    )
    return dataclasses.replace(record, claims=tuple(_claims(record)), notes=notes)


def _claims(record: Reproduction) -> Iterator[Claim]:
    for length in _lengths(record.scale):
        right = {
            (kind, name): record.cell(f"{length} assignments, {SETS[name]}: accuracy", kind).values
            for kind in PAIR
            for name in SETS
        }
        learned = {kind: any((value or 0.0) > _LEARNED for value in right[kind, IN]) for kind in PAIR}
        where, at = f"At {length} assignments: ", f", {length} assignments"
        for name, text in ((IN, "selective attention solves it."), (OUT, "it solves sequences of 2 values, too.")):
            caveat = "" if name == IN or learned[SELECTIVE] else "by a model that has not learned the task"
            what = f"accuracy of selective, {SETS[name]}{at}"
            yield Claim(where + text, right[SELECTIVE, name], what, _SOLVED, paper=1.0, digits=3, caveat=caveat)
        caveat = "" if learned[STANDARD] else "which standard attention has not learned here"
        yield Claim(
            f"{where}standard attention does not generalize as well.",
            differences(right[SELECTIVE, OUT], right[STANDARD, OUT]),
            f"accuracy of selective less that of standard, {SETS[OUT]}{at}",
            paper=0.30,
            caveat=caveat,
        )


EXPERIMENTS = (
    Experiment(
        "variable-assignment-lengths",
        "Appendix A.1, in growing lengths",
        "Variable Assignment with 3 variables and 1,000 values, in sequences that grow",
        needs,
        evaluate,
        scales=("smoke", "laptop"),
        conclude=conclude,
        by_seed=True,
    ),
)
