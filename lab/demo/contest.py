"""Two small models, equal but for their attention, learn Variable Assignment: what `python -m lab demo` shows."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.runs import find_run
from selattn.training.config import RunConfig
from selattn.training.launch import train
from selattn.training.record import Score
from selattn.utils.progress import Progress

KINDS = ("selective", "standard")


@dataclass(frozen=True)
class Contest:
    """How it ended.

    Attributes:
        scores: of each kind of attention, by the name of the set: "validation" and "out_of_distribution".
        seconds: of training and evaluation.
        folders: of the two runs, by the kind of attention.
    """

    scores: dict[str, dict[str, Score]]
    seconds: float
    folders: dict[str, Path]


def contest_runs(steps: int | None = None) -> dict[str, RunConfig]:
    """The run of each kind of attention; as long as it takes to learn it unless so many steps are wanted."""
    return {kind: _run(kind, steps) for kind in KINDS}


def contest(
    folder: str | Path, steps: int | None = None, progress: Callable[[str], Progress] = lambda kind: Progress()
) -> Contest | None:
    """Train both; None if that was interrupted.

    Args:
        folder: where the folders of the two runs go.
        steps: train for so many; None for as many as it takes.
        progress: makes what is shown of a training, from the kind of attention.
    """
    scores, folders, begun = {}, {}, time.perf_counter()
    for kind, run in contest_runs(steps).items():
        finished = train(run, Path(folder) / kind, progress=progress(kind))
        if finished.interrupted:
            return None
        scores[kind], folders[kind] = finished.evaluation, finished.folder
    return Contest(scores, time.perf_counter() - begun, folders)


def _run(kind: str, steps: int | None) -> RunConfig:
    run = find_run(f"variable-assignment-small-{kind}")
    run = dataclasses.replace(run, checkpoints=dataclasses.replace(run.checkpoints, every=run.schedule.steps))
    if steps is None:
        return run
    schedule = dataclasses.replace(run.schedule, steps=steps, warmup=min(run.schedule.warmup, steps))
    return dataclasses.replace(run, schedule=schedule)
