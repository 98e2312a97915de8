"""Trained models by the settings of their training, shared by all experiments that need them.

STORE/models/KEY/   a run's folder, as `selattn train` leaves it
STORE/models/KEY/diverged.json   instead of a model, if the loss was no number any more
STORE/work/         searches, and what has been measured so far

KEY is `training_key` of `selattn.training.record`. A training that was interrupted resumes from its checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from lab.engine.experiment import Need
from lab.engine.records import UsedModel
from selattn.errors import DivergedError, SelattnError
from selattn.training import folder as run_folder
from selattn.training.folder import LOG, MODEL, RECORD
from selattn.training.launch import train
from selattn.training.record import LogLine, Score, TrainingRecord
from selattn.utils.files import write_json
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
        scores, tokens = [], 0
        for line in self.log():
            tokens = line.get("tokens", tokens)
            if "evaluation" in line and name in line["evaluation"]:
                score = line["evaluation"][name]
                scores.append((line["step"], tokens, Score(score["loss"], score.get("accuracy"), score.get("kept"))))
        return scores

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
            ended = read_record(where / DIVERGED)
            return Trained(need, where, None, read_body(where / DIVERGED, Provenance), int(ended["step"]))
        return None

    def train(self, need: Need, progress: Progress | None = None) -> Trained | None:
        """The trained model, trained now if it is not there; None if Ctrl-C has ended that."""
        trained = self.find(need)
        if trained is not None:
            return trained
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
