"""Synthetic tasks: accuracy and loss of standard and selective models, on the way and at the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from lab.engine.frame import Cell, Claim, Experiment, Found, Need, Reproduction
from lab.engine.lab import Lab, of_seed
from lab.engine.trio import with_seeds
from lab.engine.verdicts import differences
from lab.runs.scales import Scale, scale_of
from lab.tasks import Task
from selattn.training.config import Batching, Checkpoints, Evaluation, Optimizer, RunConfig, Schedule
from selattn.training.presets import KINDS, size
from selattn.training.record import Score

NAMES = ("standard", "selective")
IN, OUT = "validation", "out_of_distribution"
SETS = {IN: "in distribution", OUT: "out of distribution"}
_LEARNED = 0.5  # accuracy in distribution from which on a model has learned its task
_UNLEARNED = "by models that have not learned the task"
Papers = Mapping[tuple[str, str, str], float]  # (kind, set, "accuracy" or "loss") -> at the end of training


def task_run(
    task: Task, kind: str, *, d: int, batch: int, steps: int, every: int, lr: float, target: float | None = None
) -> RunConfig:
    """A run on a task, smaller than the paper's."""
    return RunConfig(
        name=f"{task.name}-{kind}",
        data=task,
        model=size(d) | KINDS[kind],
        batch=Batching(size=batch),
        optimizer=Optimizer(lr=lr),
        schedule=Schedule(steps=steps, warmup=min(20, steps)),
        evaluation=Evaluation(every=every, rows=1024 if steps > 50 else 32, batch=64, target=target),
        checkpoints=Checkpoints(every=every),
        log_every=min(5, steps),
    )


class Answers:
    """The accuracies of a record's table, for claims: `answers.end("selective", OUT)`, one for each seed."""

    def __init__(self, record: Reproduction, early: int | None) -> None:
        self._cells = {(cell.row, cell.column): cell.values for cell in record.cells}
        self.step = early

    def end(self, kind: str, name: str) -> tuple[float | None, ...]:
        """At the end of training."""
        return self._cells[f"{SETS[name]}, at the end: accuracy", kind]

    def early(self, kind: str, name: str) -> tuple[float | None, ...] | None:
        """After `step` steps; None if the runs were not evaluated there."""
        return self._cells.get((f"{_after(name, self.step)}: accuracy", kind))


def task_experiment(
    *,
    name: str,
    paper: str,
    sentence: str,
    runs: Callable[[Scale], dict[str, RunConfig]],
    papers: Papers,
    claims: Callable[[Answers], Sequence[Claim]],
    early: int | None = None,
    early_papers: Papers | None = None,
    notes: Sequence[str] = (),
) -> Experiment:
    """An experiment on a task.

    Args:
        name, paper, sentence: see `Experiment`.
        runs: the runs at a scale, by kind.
        papers: the paper's numbers at the end.
        claims: from the accuracies of the table.
        early: a step at which numbers are given, too, if the runs were evaluated there or had ended.
        early_papers: the paper's there.
        notes: below the table.
    """

    def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
        return with_seeds(runs(scale), seeds)

    def evaluate(lab: Lab) -> Found:
        cells = []
        for kind in runs(lab.scale):
            for name in SETS:
                last = [lab.trained(kind, seed) for seed in lab.seeds]
                if any(each.record is None or name not in each.record.evaluation for each in last):
                    continue
                if early is not None:
                    cells += _early(lab, kind, name, early, early_papers or {})
                where = f"{SETS[name]}, at the end"
                cells.append(_cell(where, kind, "accuracy", lab.accuracies(kind, name), papers, name))
                cells.append(_cell(where, kind, "loss", lab.losses(kind, name), papers, name))
        return Found(tuple(cells))

    def conclude(record: Reproduction) -> Reproduction:
        kinds = runs(scale_of(record.scale, record.settings))
        steps = {model.name: model.steps for model in record.models}
        taken = "; ".join(
            f"{kind} {', '.join(str(steps[of_seed(kind, seed)]) for seed in record.seeds)}" for kind in kinds
        )
        found = tuple(claims(Answers(record, early)))
        return dataclasses.replace(record, claims=found, notes=(*notes, f"Steps taken by each seed: {taken}."))

    return Experiment(name, paper, sentence, needs, evaluate, conclude=conclude)


def better(answers: Answers, name: str, text: str, paper: float | None = None) -> Claim:
    """Selective attention answers more of a set than standard attention does; it says little if neither has learned."""
    what = f"accuracy of selective less that of standard, {SETS[name]}"
    learned = any(value is not None and value > _LEARNED for kind in NAMES for value in answers.end(kind, IN))
    values = differences(answers.end("selective", name), answers.end("standard", name))
    return Claim(text, values, what, paper=paper, caveat="" if learned else _UNLEARNED)


def solved(answers: Answers, kind: str, name: str, text: str, than: float = 0.99) -> Claim:
    """A kind of attention answers nearly all of a set; of another set it says little if it has not learned its own."""
    learned = any(value is not None and value > _LEARNED for value in answers.end(kind, IN))
    caveat = "" if learned or name == IN else _UNLEARNED
    return Claim(
        text, answers.end(kind, name), f"accuracy of {kind}, {SETS[name]}", than=than, paper=1.0, caveat=caveat
    )


def sooner(answers: Answers, text: str, paper: float | None = None) -> list[Claim]:
    """Selective attention answers more early in training; no claim if the runs were not evaluated there."""
    selective, standard = (answers.early(kind, IN) for kind in ("selective", "standard"))
    if selective is None or standard is None:
        return []
    what = f"accuracy of selective less that of standard, {_after(IN, answers.step)}"
    return [Claim(text, differences(selective, standard), what, paper=paper)]


def _after(name: str, step: int | None) -> str:
    return f"{SETS[name]}, after {step or 0:,} steps"


def _scores_at(lab: Lab, kind: str, name: str, step: int) -> list[Score]:
    """The evaluations at a step, one for each seed: the last one of a run that had solved its task before.

    Empty if a run has none there.
    """
    found = []
    for seed in lab.seeds:
        trained = lab.trained(kind, seed)
        scores = {at: score for at, _, score in trained.evaluations(name)}
        ended = max(scores, default=0) < step and trained.need.run.schedule.steps >= step
        found.append(scores.get(max(scores, default=0) if ended else step))
    known = [score for score in found if score is not None]
    return known if len(known) == len(found) else []


def _early(lab: Lab, kind: str, name: str, step: int, papers: Papers) -> list[Cell]:
    """The evaluations at a step, if every seed has one."""
    scores = _scores_at(lab, kind, name, step)
    if not scores:
        return []
    row = _after(name, step)
    return [
        _cell(row, kind, "accuracy", tuple(score.accuracy for score in scores), papers, name),
        _cell(row, kind, "loss", tuple(score.loss for score in scores), papers, name),
    ]


def _cell(row: str, kind: str, what: str, values: tuple[float | None, ...], papers: Papers, name: str) -> Cell:
    share = what == "accuracy"
    return Cell(f"{row}: {what}", kind, values, papers.get((kind, name, what)), 1 if share else 4, share)
