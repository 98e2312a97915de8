"""Studies: several runs that answer one question, carried out one after another and put into one record.

A study that is interrupted goes on with the run that it was in. Runs that have ended are not repeated.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selattn.errors import SelattnError, shortened
from selattn.training import folder
from selattn.training.config import RunConfig
from selattn.training.display import Display
from selattn.training.launch import Finished, train
from selattn.training.overrides import override
from selattn.training.runs import find_run
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
    """

    question: str
    runs: tuple[str, ...]
    seeds: tuple[int, ...] = SEEDS


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
    "lm_comparison": Study(
        "How do the losses of language models with the same data in the same order compare?",
        ("zoo-standard", "zoo-selective", "zoo-memory"),
    ),
}


def find_study(name: str) -> Study:
    """The study of that name."""
    if name not in STUDIES:
        raise SelattnError(f"unknown study {shortened(name)!r}; {advice(name, STUDIES)}")
    return STUDIES[name]


def carry_out(
    name: str,
    study: Study,
    settings: Sequence[str],
    runs: Path,
    results: Path,
    display: Callable[[str], Display],
) -> Path | None:
    """Train what is not trained yet and write the record; None if it was interrupted.

    Args:
        name: of the study; the record is `results/NAME.json`.
        study: its runs.
        settings: `field=value` for every run.
        runs: where the runs' folders go.
        results: where the record goes.
        display: makes what is shown of a run, from its title.
    """
    check_output(results / f"{name}.json")  # before the runs rather than after them
    finished = []
    for seed in study.seeds:
        for run_name in study.runs:
            run = dataclasses.replace(override(find_run(run_name), settings), seed=seed)
            title = f"{run_name} seed {seed}"
            done = train(run, runs / name / f"{run_name}-seed{seed}", resume=True, display=display(title))
            if done.interrupted:
                return None
            finished.append((run, done))
    data = {"study": name, "question": study.question, "settings": list(settings), **collect(finished)}
    return write_record(results / f"{name}.json", data, list(study.seeds))


def collect(finished: Iterable[tuple[RunConfig, Finished]]) -> dict[str, Any]:
    """What the record says: every run with its curves, and for each kind of run the spread over the seeds."""
    runs = [_one(run, done) for run, done in finished]
    alike = {name: [run for run in runs if run["run"] == name] for name in dict.fromkeys(run["run"] for run in runs)}
    summary = {name: {**_summary(group), "by_step": _by_step(group)} for name, group in alike.items()}
    return {"runs": runs, "summary": summary}


def _one(run: RunConfig, done: Finished) -> dict[str, Any]:
    log = folder.read_log(done.folder / folder.LOG)
    training = [record for record in log if "loss" in record]
    speeds = [record["wall"]["tokens_per_second"] for record in training]
    evaluations = [{"step": record["step"], **record["evaluation"]} for record in log if "evaluation" in record]
    return {
        "run": run.name,
        "seed": run.seed,
        "config": run.to_dict(),
        **{name: done.record[name] for name in ("parameters", "steps", "tokens", "seconds", "evaluation")},
        # None where no record was due: the run had fewer steps than log_every.
        "tokens_per_second": statistics.median(speeds) if speeds else None,
        "training": [[record["step"], record["lm_loss"]] for record in training],
        "evaluations": evaluations,
    }


def _summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the last evaluation: every number with its mean, smallest and largest over the seeds."""
    found: dict[str, Any] = {}
    for name in runs[0]["evaluation"]:
        sets = [run["evaluation"][name] for run in runs]
        for what in ("loss", "accuracy"):
            if what in sets[0]:
                found[f"{name}_{what}"] = _spread([values[what] for values in sets])
        if sets[0]["kept"] is not None:
            layers = zip(*(values["kept"] for values in sets), strict=True)
            found[f"{name}_kept"] = [None if None in layer else _spread(layer) for layer in layers]
    return found


def _by_step(runs: Sequence[dict[str, Any]]) -> dict[int, dict[str, dict[str, float]]]:
    """Of every evaluation that all seeds have: each accuracy, or loss where there is none, with its spread."""
    evaluations = [{at["step"]: at for at in run["evaluations"]} for run in runs]
    found: dict[int, dict[str, dict[str, float]]] = {}
    for step in evaluations[0]:
        if all(step in of for of in evaluations):
            found[step] = {}
            for name, values in evaluations[0][step].items():
                if name != "step":
                    what = "accuracy" if "accuracy" in values else "loss"
                    found[step][f"{name}_{what}"] = _spread([of[step][name][what] for of in evaluations])
    return found


def _spread(values: Sequence[float]) -> dict[str, float]:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "min": min(values), "max": max(values), "deviation": deviation}
