"""Studies: several runs that answer one question, carried out one after another and put into one record.

A study that is interrupted goes on with the run that it was in. Runs that have ended are not repeated.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from selattn.errors import SelattnError, shortened
from selattn.training import folder
from selattn.training.config import RunConfig
from selattn.training.display import Display
from selattn.training.launch import train
from selattn.training.overrides import override
from selattn.training.record import Score, TrainingRecord
from selattn.training.runs import find_run
from selattn.training.runs.zoo import YOUNG
from selattn.utils.records import check_output, write_record
from selattn.utils.suggest import advice

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Study:
    """Runs by name, each with several seeds.

    Attributes:
        question: what it is about, in a line.
        runs: names of shipped runs.
        seeds: each run is carried out with each of them; runs with the same seed see the same data in the same order.
        settings: `field=value` that every run has, unless the user sets another.
    """

    question: str
    runs: tuple[str, ...]
    seeds: tuple[int, ...] = SEEDS
    settings: tuple[str, ...] = ()


STUDIES = {
    "variable_assignment": Study(
        "Does selective attention solve Variable Assignment, in and out of distribution, where standard does not?",
        ("variable-assignment-small-selective", "variable-assignment-small-standard"),
    ),
    "synthetic": Study(
        "Do both kinds of attention solve Copy and Parity*?",
        ("copy-small-selective", "copy-small-standard", "parity-small-selective", "parity-small-standard"),
        seeds=(0,),
    ),
    "t5": Study(
        "How do the span-corruption losses of T5 compare, with and without selection in its decoder?",
        ("t5-tiny-standard", "t5-tiny-selective"),
    ),
    "lm_comparison": Study(
        "How do the losses of language models with the same data in the same order compare?",
        ("zoo-standard", "zoo-selective", "zoo-memory"),
        settings=YOUNG,
    ),
}


def find_study(name: str) -> Study:
    """The study of that name."""
    if name not in STUDIES:
        raise SelattnError(f"unknown study {shortened(name)!r}; {advice(name, STUDIES)}")
    return STUDIES[name]


class Spread(TypedDict):
    """A number over the seeds."""

    mean: float
    min: float
    max: float
    deviation: float


@dataclass(frozen=True)
class StudyRun:
    """A run of a study.

    Attributes:
        run: its name.
        seed: that it had.
        config: the whole configuration, `RunConfig.to_dict`.
        parameters, steps, tokens, seconds, evaluation: see `TrainingRecord`.
        tokens_per_second: the median over the log; None if the run had fewer steps than `log_every`.
        training: step and loss, without the memory loss, of every line of the log.
        evaluations: every evaluation with its step: `Score` by the name of the set, as JSON has it.
    """

    run: str
    seed: int
    config: dict[str, Any]
    parameters: int
    steps: int
    tokens: int
    seconds: float
    evaluation: dict[str, Score]
    tokens_per_second: float | None
    training: list[list[float]]
    evaluations: list[dict[str, Any]]


@dataclass(frozen=True)
class StudyRecord:
    """The record of `selattn study`.

    Attributes:
        study: its name.
        question: what it is about.
        settings: `field=value` that every run had.
        runs: each of them.
        summary: for each kind of run the spread of each number over the seeds, at the end and `by_step`.
    """

    study: str
    question: str
    settings: list[str]
    runs: list[StudyRun]
    summary: dict[str, dict[str, Any]]


def run_study(
    study: str | Study,
    settings: Sequence[str] = (),
    runs: str | Path = "runs/studies",
    record: str | Path | None = None,
    *,
    name: str | None = None,
    display: Callable[[str], Display] = lambda title: Display(),
) -> StudyRecord | None:
    """Train what is not trained yet, and compare; None if it was interrupted.

    Args:
        study: its runs, or the name of a shipped one.
        settings: `field=value` for every run.
        runs: where the runs' folders go.
        record: where the record goes.
        name: of the study; by default that of a shipped one.
        display: makes what is shown of a run, from its title.
    """
    label = name or (study if isinstance(study, str) else "study")
    chosen = find_study(study) if isinstance(study, str) else study
    if any(setting.startswith("seed=") for setting in settings):
        raise SelattnError(f"a study has its own seeds, {', '.join(map(str, chosen.seeds))}: leave seed=... out")
    path = None if record is None else Path(record)
    check_output(path)  # before the runs rather than after them
    finished = []
    for seed in chosen.seeds:
        for run_name in chosen.runs:
            run = dataclasses.replace(override(find_run(run_name), [*chosen.settings, *settings]), seed=seed)
            where = Path(runs) / label / f"{run_name}-seed{seed}"
            done = train(run, where, resume=True, display=display(f"{run_name} seed {seed}"))
            if done.record is None:
                return None
            finished.append(_one(run, done.record, where))
    found = StudyRecord(label, chosen.question, list(settings), finished, summarize(finished))
    if path is not None:
        write_record(path, found, list(chosen.seeds))
    return found


def summarize(runs: Sequence[StudyRun]) -> dict[str, dict[str, Any]]:
    """For each kind of run the spread over the seeds: of the last evaluation, and of every one that all seeds have."""
    alike = {name: [run for run in runs if run.run == name] for name in dict.fromkeys(run.run for run in runs)}
    return {name: {**_summary(group), "by_step": _by_step(group)} for name, group in alike.items()}


def _one(run: RunConfig, record: TrainingRecord, where: Path) -> StudyRun:
    log = folder.read_log(where / folder.LOG)
    training = [line for line in log if "loss" in line]
    speeds = [line["wall"]["tokens_per_second"] for line in training]
    return StudyRun(
        run=run.name,
        seed=run.seed,
        config=run.to_dict(),
        parameters=record.parameters,
        steps=record.steps,
        tokens=record.tokens,
        seconds=record.seconds,
        evaluation=record.evaluation,
        tokens_per_second=statistics.median(speeds) if speeds else None,
        training=[[line["step"], line["lm_loss"]] for line in training],
        evaluations=[{"step": line["step"], **line["evaluation"]} for line in log if "evaluation" in line],
    )


def _summary(runs: Sequence[StudyRun]) -> dict[str, Any]:
    """Of the last evaluation: every number with its mean, smallest and largest over the seeds."""
    found: dict[str, Any] = {}
    for name in runs[0].evaluation:
        scores = [run.evaluation[name] for run in runs]
        found[f"{name}_loss"] = _spread([score.loss for score in scores])
        right = [score.accuracy for score in scores if score.accuracy is not None]
        if right:
            found[f"{name}_accuracy"] = _spread(right)
        kept = [score.kept for score in scores if score.kept is not None]
        if kept:
            layers = zip(*kept, strict=True)
            found[f"{name}_kept"] = [None if None in layer else _spread(layer) for layer in layers]
    return found


def _by_step(runs: Sequence[StudyRun]) -> dict[int, dict[str, Spread]]:
    """Of every evaluation that all seeds have: each accuracy, or loss where there is none, with its spread."""
    evaluations = [{at["step"]: at for at in run.evaluations} for run in runs]
    found: dict[int, dict[str, Spread]] = {}
    for step in evaluations[0]:
        if all(step in of for of in evaluations):
            found[step] = {}
            for name, values in evaluations[0][step].items():
                if name != "step":
                    what = "accuracy" if "accuracy" in values else "loss"
                    found[step][f"{name}_{what}"] = _spread([of[step][name][what] for of in evaluations])
    return found


def _spread(values: Sequence[float]) -> Spread:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "min": min(values), "max": max(values), "deviation": deviation}
