"""Losses of trainings that stand in records: with them a table grows by seeds and rows, on whatever machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lab.engine.frame import Need, Reproduction, UsedModel
from selattn.training.record import Score
from selattn.utils.records import read_body
from selattn.utils.typed import from_json


@dataclass(frozen=True)
class Recorded:
    """A training that a record tells of: its losses are known, its weights are not here.

    Attributes:
        need: what it is wanted for.
        file: the record.
        model: what that record says of it.
    """

    need: Need
    file: Path
    model: UsedModel

    @property
    def diverged(self) -> int | None:
        """The step at which the loss was no number any more; None if it ended."""
        return self.model.diverged

    @property
    def data_checksums(self) -> dict[str, str]:
        """Of the tokens that it was trained and validated on."""
        return self.model.data_checksums

    @property
    def where(self) -> Path:
        """The record, for messages."""
        return self.file

    def score(self, name: str = "validation") -> Score | None:
        """The last evaluation on one of the run's sets; None of a run that diverged."""
        return None if self.diverged is not None else from_json(Score, self.model.evaluation[name])

    def used(self, name: str) -> UsedModel:
        """For the record of another experiment: where it was trained stays as it was."""
        return UsedModel(**{**vars(self.model), "name": name})


class Records:
    """The trainings of all records in a folder, by their keys; of one that several tell of, the newest."""

    def __init__(self, folder: str | Path) -> None:
        found = [
            (model.date, file, model)
            for file in sorted(Path(folder).glob("*.json"))
            for model in read_body(file, Reproduction).models
        ]
        self._models = {model.key: (file, model) for _, file, model in sorted(found, key=lambda each: each[0])}

    def find(self, need: Need) -> Recorded | None:
        """The training, if a record tells of it."""
        found = self._models.get(need.key)
        return None if found is None else Recorded(need, *found)
