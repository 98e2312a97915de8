"""The synthetic tasks (Appendix A): accuracy and loss of standard and selective models, on the way and at the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lab.engine.experiment import Experiment, of_seed, with_seeds
from lab.engine.lab import Lab
from lab.engine.records import Cell, Claim, Measured, Reproduction, Values, differences
from lab.runs import SMALL_ASSIGNMENT, find_run
from lab.scales import PAIR, SELECTIVE, STANDARD, Scale, scale_of
from lab.tasks import Copy, Parity, Task, VariableAssignment
from selattn.training.config import Batching, Checkpoints, Evaluation, Optimizer, RunConfig, Schedule
from selattn.training.presets import KINDS as MODELS
from selattn.training.presets import size
from selattn.training.record import Score

IN, OUT = "validation", "out_of_distribution"
SETS = {IN: "in distribution", OUT: "out of distribution"}
_LEARNED = 0.5  # accuracy in distribution from which on a model has learned its task
_UNLEARNED = "by models that have not learned the task"
Papers = Mapping[tuple[str, str, str], float]  # (kind, set, "accuracy" or "loss") -> at the end of training
Claims = Callable[["Answers"], Sequence[Claim]]


def task_run(
    task: Task, kind: str, *, d: int, batch: int, steps: int, every: int, lr: float, target: float | None = None
) -> RunConfig:
    """A run on a task, smaller than the paper's."""
    return RunConfig(
        name=f"{task.name}-{kind}",
        data=task,
        model=size(d) | MODELS[kind],
        batch=Batching(size=batch),
        optimizer=Optimizer(lr=lr),
        schedule=Schedule(steps=steps, warmup=min(20, steps)),
        evaluation=Evaluation(every=every, rows=1024 if steps > 50 else 32, batch=64, target=target),
        checkpoints=Checkpoints(every=every),
        log_every=min(5, steps),
    )


class Answers:
    """The accuracies of a record's table, for claims: `answers.end(SELECTIVE, OUT)`, one for each seed."""

    def __init__(self, record: Reproduction, early: int | None) -> None:
        self._cells = {(cell.row, cell.column): cell.values for cell in record.cells}
        self.step = early

    def end(self, kind: str, name: str) -> Values:
        """At the end of training."""
        return self._cells[f"{SETS[name]}, at the end: accuracy", kind]

    def early(self, kind: str, name: str) -> Values | None:
        """After `step` steps; None if the runs were not evaluated there."""
        return self._cells.get((f"{_after(name, self.step)}: accuracy", kind))


def task_experiment(
    name: str,
    paper: str,
    sentence: str,
    runs: Callable[[Scale], dict[str, RunConfig]],
    claims: Claims,
    *,
    papers: Papers | None = None,
    early: int | None = None,
    early_papers: Papers | None = None,
    notes: Sequence[str] = (),
) -> Experiment:
    """An experiment on a task.

    Args:
        name, paper, sentence: see `Experiment`.
        runs: the runs at a scale, by kind.
        claims: from the accuracies of the table.
        papers: the paper's numbers at the end.
        early: a step at which numbers are given, too, if the runs were evaluated there or had ended.
        early_papers: the paper's there.
        notes: below the table.
    """

    def evaluate(lab: Lab) -> Measured:
        cells = []
        for kind in runs(lab.scale):
            for name in SETS:
                last = [lab.trained(kind, seed) for seed in lab.seeds]
                if any(each.record is None or name not in each.record.evaluation for each in last):
                    continue
                if early is not None:
                    cells += _early(lab, kind, name, early, early_papers or {})
                where = f"{SETS[name]}, at the end"
                cells.append(_cell(where, kind, "accuracy", lab.accuracies(kind, name), papers or {}, name))
                cells.append(_cell(where, kind, "loss", lab.losses(kind, name), papers or {}, name))
        return Measured(tuple(cells))

    def conclude(record: Reproduction) -> Reproduction:
        kinds = runs(scale_of(record.scale, record.settings))
        steps = {model.name: model.steps for model in record.models}
        taken = "; ".join(
            f"{kind} {', '.join(str(steps[of_seed(kind, seed)]) for seed in record.seeds)}" for kind in kinds
        )
        made = tuple(claims(Answers(record, early)))
        return dataclasses.replace(record, claims=made, notes=(*notes, f"Steps taken by each seed: {taken}."))

    return Experiment(
        name, paper, sentence, lambda scale, seeds: with_seeds(runs(scale), seeds), evaluate, conclude=conclude
    )


def better(answers: Answers, name: str, text: str, paper: float | None = None) -> Claim:
    """Selective attention answers more of a set than standard attention does; it says little if neither has learned."""
    what = f"accuracy of selective less that of standard, {SETS[name]}"
    learned = any(value is not None and value > _LEARNED for kind in PAIR for value in answers.end(kind, IN))
    values = differences(answers.end(SELECTIVE, name), answers.end(STANDARD, name))
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
    selective, standard = (answers.early(kind, IN) for kind in (SELECTIVE, STANDARD))
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
    by_seed = []
    for seed in lab.seeds:
        trained = lab.trained(kind, seed)
        scores = {at: score for at, _, score in trained.evaluations(name)}
        ended = max(scores, default=0) < step and trained.need.run.schedule.steps >= step
        by_seed.append(scores.get(max(scores, default=0) if ended else step))
    known = [score for score in by_seed if score is not None]
    return known if len(known) == len(by_seed) else []


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


def _cell(row: str, kind: str, what: str, values: Values, papers: Papers, name: str) -> Cell:
    share = what == "accuracy"
    return Cell(f"{row}: {what}", kind, values, papers.get((kind, name, what)), 1 if share else 4, share)


# --- The experiments. On a laptop Copy and Parity* are the paper's, with a small model until it solves them.


def small_runs(task: Callable[[], Task], name: str) -> Callable[[Scale], dict[str, RunConfig]]:
    """The runs `NAME-KIND` of `lab.runs` at the paper's scale, `NAME-small-KIND` on a laptop, and a tiny task."""

    def runs(scale: Scale) -> dict[str, RunConfig]:
        if scale.name == "smoke":
            return {kind: task_run(task(), kind, d=1, batch=8, steps=8, every=4, lr=3e-3) for kind in PAIR}
        small = "-small" if scale.name == "laptop" else ""
        return {kind: find_run(f"{name}{small}-{kind}") for kind in PAIR}

    return runs


copy_runs = small_runs(lambda: Copy(longest=4), "copy")
parity_runs = small_runs(lambda: Parity(bits=8), "parity")


def _both_solve(title: str) -> Claims:
    return lambda answers: [solved(answers, k, IN, f"{k.capitalize()} attention solves {title}.") for k in PAIR]


def _pair(task: Task, **settings: Any) -> dict[str, RunConfig]:
    return {kind: task_run(task, kind, **settings) for kind in PAIR}


_LAPTOP: dict[str, Any] = {"d": 3, "batch": 64, "steps": 1_000, "every": 100, "lr": 2e-3, "target": 1.0}
_SMOKE: dict[str, Any] = {"d": 2, "batch": 16, "steps": 8, "every": 4, "lr": 2e-3}


def assignment_runs(scale: Scale) -> dict[str, RunConfig]:
    """On a laptop the paper's task with 64 rows in a batch, not 2,048, and 1,000 steps at most, not 65,536."""
    if scale.name == "paper":
        return {kind: find_run(f"variable-assignment-{kind}") for kind in PAIR}
    if scale.name == "laptop":
        return _pair(VariableAssignment(variables=3, values=1000, assignments=128), **_LAPTOP)
    return _pair(VariableAssignment(variables=3, values=10, assignments=4), **_SMOKE)


def _ten_by_ten(scale: Scale) -> dict[str, RunConfig]:
    """The number of assignments is open in the paper: 128 as in its other setting."""
    if scale.name == "paper":
        return {kind: find_run(f"variable-assignment-10x10-{kind}") for kind in PAIR}
    if scale.name == "laptop":
        return _pair(VariableAssignment.ten_by_ten(), **_LAPTOP)
    return _pair(VariableAssignment.ten_by_ten(assignments=4), **_SMOKE)


def _larger(scale: Scale) -> dict[str, RunConfig]:
    """On a laptop the small task of `python -m lab demo`: the paper's own would take days with d=8."""
    if scale.name == "paper":
        runs = {kind: find_run(f"variable-assignment-{kind}") for kind in PAIR}
        return {kind: dataclasses.replace(run, model={**run.model, **size(8)}) for kind, run in runs.items()}
    if scale.name == "laptop":
        return _pair(SMALL_ASSIGNMENT, d=8, batch=64, steps=300, every=50, lr=1e-3)
    return _pair(VariableAssignment(variables=3, values=10, assignments=4), d=3, batch=8, steps=6, every=3, lr=1e-3)


EXPERIMENTS = (
    task_experiment(
        "variable-assignment",
        "Appendix A.1",
        "Variable Assignment with 3 variables, 1,000 values and 128 assignments, in and out of distribution",
        assignment_runs,
        lambda answers: (  # learned sooner, solved, and generalized from, by selective attention alone
            *sooner(answers, "Selective attention learns Variable Assignment far sooner.", paper=0.74),
            solved(answers, SELECTIVE, IN, "Selective attention solves Variable Assignment."),
            solved(answers, SELECTIVE, OUT, "It solves sequences with only 2 different values, too."),
            better(answers, OUT, "Standard attention does not generalize as well.", paper=0.30),
        ),
        papers={
            (STANDARD, IN, "accuracy"): 1.0, (STANDARD, IN, "loss"): 0.01,
            (SELECTIVE, IN, "accuracy"): 1.0, (SELECTIVE, IN, "loss"): 2.2e-8,
            (STANDARD, OUT, "accuracy"): 0.70, (STANDARD, OUT, "loss"): 3.64,
            (SELECTIVE, OUT, "accuracy"): 1.0, (SELECTIVE, OUT, "loss"): 2.4e-8,
        },
        early=1_000,  # steps: the paper gives numbers there, too
        early_papers={
            (STANDARD, IN, "accuracy"): 0.26, (STANDARD, IN, "loss"): 3.18,
            (SELECTIVE, IN, "accuracy"): 1.0, (SELECTIVE, IN, "loss"): 0.002,
        },
        notes=("The paper trains 65,536 steps of 2,048 rows, and gives numbers after 1,000 of them, too. Out of "
               "distribution only 2 of the values occur.",),
    ),
    task_experiment(
        "variable-assignment-10x10",
        "Appendix A.1, other settings",
        "Variable Assignment with 10 variables and 10 values",
        _ten_by_ten,
        lambda answers: (
            solved(answers, SELECTIVE, IN, "Selective attention solves the 10 x 10 setting, too."),
            better(answers, OUT, "Standard attention does not generalize as well there."),
        ),
        early=1_000,
        notes=('The paper: "similar results in other settings".',),
    ),
    task_experiment(
        "variable-assignment-d8",
        "Appendix A.1, d=8",
        "Variable Assignment with larger models",
        _larger,
        lambda answers: (
            solved(answers, SELECTIVE, IN, "Selective attention solves it with larger models, too."),
            better(answers, OUT, "Larger standard models do not generalize as well, either."),
        ),
        notes=(
            'The paper: "similar results" with d=8. The laptop has 100 values and 16 assignments, the smoke test d=3.',
        ),
    ),
    task_experiment(
        "copy",
        "Appendix A.2, Copy",
        "Copy with standard and selective attention",
        copy_runs,
        _both_solve("Copy"),
        papers={(kind, IN, "accuracy"): 1.0 for kind in PAIR},
    ),
    task_experiment(
        "parity",
        "Appendix A.2, Parity*",
        "Parity* with standard and selective attention",
        parity_runs,
        _both_solve("Parity*"),
        papers={(kind, IN, "accuracy"): 1.0 for kind in PAIR},
    ),
)  # fmt: skip
