"""Trained models by what they were trained with: every experiment that needs one finds it, whoever trained it.

STORE/models/KEY/   a run's folder, as `selattn train` leaves it; of one that was adopted run.json, log.jsonl and model/
STORE/models/KEY/diverged.json   instead of a model, if the loss was no number any more
STORE/work/         searches, and what has been measured so far

KEY is that of `selattn.training.identity`. A run that was begun here goes on where it was.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from lab.engine.frame import Need, UsedModel
from selattn.errors import DivergedError, SelattnError
from selattn.training import folder as run_folder
from selattn.training.folder import CONFIG, LOG, MODEL, RECORD
from selattn.training.identity import training_key
from selattn.training.launch import train
from selattn.training.record import LogLine, Score, TrainingRecord
from selattn.utils.files import LOCK, folders_for, locked, make_folder, write_json
from selattn.utils.progress import Progress
from selattn.utils.records import Provenance, provenance, read_body, read_record
from selattn.utils.typed import to_json

DIVERGED = "diverged.json"


@dataclass(frozen=True)
class Trained:
    """A model of the store.

    Attributes:
        need: what it was wanted for.
        folder: of its run.
        record: of its training; None if it diverged.
        made: by which command, when and where.
        diverged: the step at which the loss was no number any more; None if it ended.
    """

    need: Need
    folder: Path
    record: TrainingRecord | None
    made: Provenance
    diverged: int | None = None

    @property
    def data_checksums(self) -> dict[str, str]:
        """Of the tokens that it was trained and validated on; empty if it diverged, and in old records."""
        return {} if self.record is None else self.record.data_checksums

    @property
    def where(self) -> Path:
        """Its folder, for messages."""
        return self.folder

    @property
    def model(self) -> str:
        """The folder of the model, as commands and functions take it."""
        if self.record is None:
            raise SelattnError(f"{self.need.run.name} diverged at step {self.diverged}: there is no model of it")
        return str(self.folder / MODEL)

    def score(self, name: str = "validation") -> Score | None:
        """The last evaluation on one of the run's sets; None of a run that diverged."""
        return None if self.record is None else self.record.evaluation[name]

    def log(self) -> list[LogLine]:
        """Every line that the training has logged."""
        return run_folder.read_log(self.folder / LOG)

    def evaluations(self, name: str = "validation") -> list[tuple[int, int, Score]]:
        """Step, tokens so far, and score of every evaluation on a set."""
        found, tokens = [], 0
        for line in self.log():
            tokens = line.get("tokens", tokens)
            if "evaluation" in line and name in line["evaluation"]:
                score = line["evaluation"][name]
                found.append((line["step"], tokens, Score(score["loss"], score.get("accuracy"), score.get("kept"))))
        return found

    def used(self, name: str) -> UsedModel:
        """For the record of an experiment."""
        record = self.record
        return UsedModel(
            name=name,
            key=self.need.key,
            run=self.need.run.to_dict() if record is None else record.run,
            data_checksums=self.data_checksums,
            steps=self.diverged or 0 if record is None else record.steps,
            tokens=0 if record is None else record.tokens,
            evaluation={} if record is None else to_json(record.evaluation),
            diverged=self.diverged,
            commit=self.made.commit,
            date=self.made.date,
            versions=self.made.versions,
            machine=self.made.machine,
        )


class Store:
    """A folder of trained models."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.work = self.folder / "work"

    def place(self, key: str) -> Path:
        """The folder of the run with that key."""
        return self.folder / "models" / key

    def find(self, need: Need) -> Trained | None:
        """The trained model, if it is there."""
        where = self.place(need.key)
        if run_folder.finished(where):
            made = read_body(where / MODEL / RECORD, Provenance)
            return Trained(need, where, run_folder.read_finished(where), made)
        if (where / DIVERGED).is_file():
            found = read_record(where / DIVERGED)
            return Trained(need, where, None, read_body(where / DIVERGED, Provenance), int(found["step"]))
        return None

    def train(self, need: Need, progress: Progress | None = None) -> Trained | None:
        """The trained model, trained now if it is not there; None if Ctrl-C has ended that."""
        found = self.find(need)
        if found is not None:
            return found
        run, where = need.run, self.place(need.key)
        if need.after is not None:
            before = self.train(need.after, progress)
            if before is None:
                return None
            run = replace(run, start=replace(run.start, model=before.model))
        try:
            if train(run, where, resume=True, progress=progress).interrupted:
                return None
        except DivergedError as error:
            made = to_json(provenance(run.seed))
            write_json(where / DIVERGED, {**made, "run": run.to_dict(), "step": error.step})
        return self.find(need)

    def adopt(self, folder: str | Path) -> dict[Path, str]:
        """Copy in the finished runs that lie in a folder, however deep; says what became of each.

        A run that is not finished is left alone, and so is one that began with the model of another: of that it
        cannot be told which training it was. A training that was begun in the store gives way, unless it is running.
        """
        folder = Path(folder).expanduser()
        if not folder.is_dir():
            raise SelattnError(f"{folder} is not a folder: --adopt takes one with runs of 'selattn train' in it")
        # Of several processes one does it, and the others find it done.
        with folders_for(self.folder), locked(self.folder / ("adopting" + LOCK)):
            return {run: self._adopt(run) for run in finished_runs(folder)}

    def _adopt(self, run: Path) -> str:
        try:
            record = read_body(run / MODEL / RECORD, TrainingRecord)
        except SelattnError as error:
            return f"left out: {error}"
        if record.run.get("start", {}).get("model") is not None:
            return "left out: it began with the model of another run"
        where = self.place(training_key(record.run))
        if not self._cleared(where):
            return "is being trained"
        return "adopted" if self._copy(run, where) else "is there already"

    def _cleared(self, where: Path) -> bool:
        """Remove a training that was begun here, for another has ended; False if a process is at it."""
        if not where.is_dir() or _ended(where):
            return True
        with contextlib.closing(run_folder.Claim(where)) as claim:
            if not claim.take_if_free():
                return False
            if not _ended(where):  # nor meanwhile
                shutil.rmtree(where)
        return True

    def _copy(self, run: Path, where: Path) -> bool:
        """Copy a finished run, unless that training is here."""

        def fill(part: Path) -> None:
            shutil.copytree(run / MODEL, part / MODEL)
            for name in (CONFIG, LOG):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy2(run / name, part / name)

        return make_folder(where, fill)


def _ended(where: Path) -> bool:
    return run_folder.finished(where) or (where / DIVERGED).exists()


def finished_runs(folder: Path) -> Iterator[Path]:
    """The folders of runs that have ended, in and below a folder."""
    for file in sorted(folder.rglob(f"{MODEL}/{RECORD}")):
        with contextlib.suppress(ValueError, OSError):  # half a file: the run is ending just now
            if "run" in json.loads(file.read_bytes()):
                yield file.parents[1]
