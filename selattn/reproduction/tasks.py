"""Synthetic tasks: accuracy and loss of standard and selective models, on the way and at the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from selattn.data.synthetic import Task
from selattn.reproduction.frame import Cell, Claim, Experiment, Found, Need
from selattn.reproduction.lab import Lab
from selattn.reproduction.scales import Scale
from selattn.reproduction.trio import with_seeds
from selattn.reproduction.verdicts import differences
from selattn.training.config import Batching, Checkpoints, Evaluation, Optimizer, RunConfig, Schedule
from selattn.training.record import Score
from selattn.training.runs.kinds import KINDS, size

NAMES = ("standard", "selective")
IN, OUT = "validation", "out_of_distribution"
SETS = {IN: "in distribution", OUT: "out of distribution"}
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


def task_experiment(
    *,
    name: str,
    paper: str,
    sentence: str,
    runs: Callable[[Scale], dict[str, RunConfig]],
    papers: Papers,
    claims: Callable[[Lab, Mapping[tuple[str, str], tuple[float | None, ...]]], Sequence[Claim]],
    early: int | None = None,
    early_papers: Papers | None = None,
    notes: Sequence[str] = (),
) -> Experiment:
    """An experiment on a task.

    Args:
        name, paper, sentence: see `Experiment`.
        runs: the runs at a scale, by kind.
        papers: the paper's numbers at the end.
        claims: from the lab and the accuracies at the end, by kind and set.
        early: a step at which numbers are given, too, if the runs were evaluated there.
        early_papers: the paper's there.
        notes: below the table.
    """

    def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
        return with_seeds(runs(scale), seeds)

    def evaluate(lab: Lab) -> Found:
        cells, ends = [], {}
        for kind in runs(lab.scale):
            for name, title in SETS.items():
                last = [lab.trained(kind, seed) for seed in lab.seeds]
                if any(each.record is None or name not in each.record.evaluation for each in last):
                    continue
                ends[kind, name] = lab.accuracies(kind, name)
                if early is not None:
                    cells += _early(lab, kind, name, early, early_papers or {})
                cells.append(_cell(f"{title}, at the end", kind, "accuracy", ends[kind, name], papers, name))
                cells.append(_cell(f"{title}, at the end", kind, "loss", lab.losses(kind, name), papers, name))
        steps = {
            kind: sorted({lab.trained(kind, seed).used("").steps for seed in lab.seeds}) for kind in runs(lab.scale)
        }
        taken = "; ".join(f"{kind} {', '.join(map(str, each))}" for kind, each in steps.items())
        found = tuple(claims(lab, ends))
        return Found(tuple(cells), found, (*notes, f"Steps taken: {taken}."), {})

    return Experiment(name, paper, sentence, needs, evaluate)


def better(
    ends: Mapping[tuple[str, str], tuple[float | None, ...]], name: str, text: str, paper: float | None = None
) -> Claim:
    """Selective attention answers more of a set than standard attention does."""
    what = f"accuracy of selective less that of standard, {SETS[name]}"
    return Claim(text, differences(ends["selective", name], ends["standard", name]), what, paper=paper)


def solved(
    ends: Mapping[tuple[str, str], tuple[float | None, ...]], kind: str, name: str, text: str, than: float = 0.99
) -> Claim:
    """A kind of attention answers nearly all of a set."""
    return Claim(text, ends[kind, name], f"accuracy of {kind}, {SETS[name]}", than=than, paper=1.0)


def sooner(lab: Lab, step: int, text: str, paper: float | None = None) -> list[Claim]:
    """Selective attention answers more after so many steps; no claim if a run was not evaluated there."""
    found = {kind: _scores_at(lab, kind, IN, step) for kind in NAMES}
    if not all(found.values()):
        return []
    ends = {(kind, IN): tuple(score.accuracy for score in scores) for kind, scores in found.items()}
    claim = better(ends, IN, text, paper)
    return [dataclasses.replace(claim, what=f"{claim.what}, after {step:,} steps")]


def _scores_at(lab: Lab, kind: str, name: str, step: int) -> list[Score]:
    """The evaluations at a step, one for each seed; empty if a run has none there, as one that was solved before."""
    found = [{at: score for at, _, score in lab.trained(kind, seed).evaluations(name)}.get(step) for seed in lab.seeds]
    scores = [score for score in found if score is not None]
    return scores if len(scores) == len(found) else []


def _early(lab: Lab, kind: str, name: str, step: int, papers: Papers) -> list[Cell]:
    """The evaluations at a step, if every seed has one."""
    scores = _scores_at(lab, kind, name, step)
    if not scores:
        return []
    row = f"{SETS[name]}, after {step:,} steps"
    return [
        _cell(row, kind, "accuracy", tuple(score.accuracy for score in scores), papers, name),
        _cell(row, kind, "loss", tuple(score.loss for score in scores), papers, name),
    ]


def _cell(row: str, kind: str, what: str, values: tuple[float | None, ...], papers: Papers, name: str) -> Cell:
    share = what == "accuracy"
    return Cell(f"{row}: {what}", kind, values, papers.get((kind, name, what)), 1 if share else 4, share)
