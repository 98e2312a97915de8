"""What an experiment is given to measure with: its trained models, the text, and a memory of what was measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from lab.engine.frame import Need
from lab.engine.progress import Overview
from lab.engine.recorded import Recorded, Records
from lab.engine.settings import changed_beside
from lab.engine.store import Store, Trained
from lab.runs.scales import Scale
from selattn.errors import SelattnError
from selattn.evaluation.text import Text
from selattn.models.loading import Loaded
from selattn.training.config import TextData
from selattn.utils.distributed import Team
from selattn.utils.journal import Parts

T = TypeVar("T")


class InterruptedTraining(Exception):
    """Ctrl-C has ended a training, with a checkpoint."""


class Memory:
    """What has been measured: in earlier processes, by their file, and in this one."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._found: dict[str, Any] = {}

    def get(self, key: Mapping[str, Any], kind: type[T], measure: Callable[[], T]) -> T:
        """What stands under this key, or else is measured now."""
        name = json.dumps(dict(key), sort_keys=True)
        if name not in self._found:
            self._found[name] = self._parts.get(dict(key), kind, measure)
        found: T = self._found[name]
        return found


class Lab:
    """The models of an experiment at a scale.

    Args:
        scale: the size.
        seeds: of the trainings.
        store: where the models are.
        needs: of the experiment, by name, without the settings.
        memory: what has been measured.
        team: the processes that share the work.
        overview: is told of trainings.
        questions: a folder with the questions of the downstream tasks; None for the hub.
        settings: `field=value` that every training has.
        records: where losses of trainings stand that are not trained again; None trains what is not in the store.
    """

    def __init__(
        self,
        scale: Scale,
        seeds: Sequence[int],
        store: Store,
        needs: Mapping[str, Need],
        memory: Memory,
        team: Team,
        overview: Overview,
        questions: Path | None = None,
        settings: Sequence[str] = (),
        records: Records | None = None,
    ) -> None:
        self.scale, self.seeds, self.store = scale, tuple(seeds), store
        self.needs = {name: need.changed(settings) for name, need in needs.items()}
        self.memory, self.team, self.overview, self.questions = memory, team, overview, questions
        self.used: dict[str, Trained | Recorded] = {}
        self.settings: dict[str, Any] = {
            "source": scale.data.source,
            "set": list(settings),
            "texts": dict(scale.texts),
            "positions": list(scale.tried),
        }
        self._tokens: dict[str, str] = {}
        self._plain, self._changes, self._records = tuple(needs.values()), settings, records

    def trained(self, name: str, seed: int | None = None) -> Trained:
        """A model that was needed; `seed` completes its name."""
        return self._trained(of_seed(name, seed), self.needs[of_seed(name, seed)])

    def train(self, name: str, need: Need) -> Trained:
        """A model that comes up on the way, such as one with budgets that were just found; trained if it is new."""
        return self._trained(name, changed_beside(need, self._plain, self._changes))

    def known(self, name: str, seed: int | None = None) -> Trained | Recorded:
        """A model that was needed, or what a record tells of it."""
        whole = of_seed(name, seed)
        if whole in self.used:
            return self.used[whole]
        need = self.needs[whole]
        recorded = None if self._records is None else self._records.find(need)
        if recorded is None or self.store.find(need) is not None:
            return self._trained(whole, need)
        self._check_text(recorded)
        self.used[whole] = recorded
        return recorded

    def _trained(self, name: str, need: Need) -> Trained:
        there = self.used.get(name)
        if isinstance(there, Trained):
            return there
        found = self.store.find(need) or self.store.train(need, self.overview.display(name, need))
        if found is None:
            raise InterruptedTraining
        self._check_text(found)
        self.used[name] = found
        return found

    def losses(self, name: str, set_name: str = "validation") -> tuple[float | None, ...]:
        """The last loss of a model on a set of its run, for each seed; None where it diverged."""
        scores = [self.known(name, seed).score(set_name) for seed in self.seeds]
        return tuple(None if score is None else score.loss for score in scores)

    def accuracies(self, name: str, set_name: str = "validation") -> tuple[float | None, ...]:
        """The same for accuracies."""
        scores = [self.trained(name, seed).score(set_name) for seed in self.seeds]
        return tuple(None if score is None else score.accuracy for score in scores)

    def text(self, long: bool = False) -> Text:
        """The documents that are held out from training, one in each row."""
        data = self.scale.data
        return Text(data.source, layout="documents", long=long, reading=data.reading())

    def tokens(self, loaded: Loaded) -> str:
        """The checksum of the held-out text as a model reads it: in the key of whatever is measured on it."""
        name = loaded.tokenizer.fingerprint
        if name not in self._tokens:
            self._tokens[name] = self.text().store(loaded.tokenizer).checksum
        return self._tokens[name]

    def part(self, key: Mapping[str, Any], kind: type[T], measure: Callable[[], T]) -> T:
        """What was measured before under this key, or else is now; the key has all that it depends on."""
        return self.memory.get(key, kind, measure)

    def place(self, what: str, **of: Any) -> Path:
        """A folder for work that goes on where it was, named after what it depends on."""
        key = hashlib.blake2b(json.dumps(of, sort_keys=True).encode(), digest_size=8).hexdigest()
        return self.store.work / f"{what}-{key}"

    def _check_text(self, found: Trained | Recorded) -> None:
        """Models of one table must have read the same text, whatever it is called."""
        data = found.need.run.data
        if not isinstance(data, TextData):
            return
        for other in self.used.values():
            theirs = other.need.run.data
            if not isinstance(theirs, TextData):
                continue
            same = replace(theirs, context=data.context, layout=data.layout) == data
            known = found.data_checksums and other.data_checksums  # early versions noted none
            if same and known and other.data_checksums != found.data_checksums:
                raise SelattnError(
                    f"{found.where} and {other.where} were trained on different texts of the same name: "
                    "begin another store with --store, and adopt the runs of one text only"
                )


def of_seed(name: str, seed: int | None) -> str:
    """The name of a need with its seed."""
    return name if seed is None else f"{name}, seed {seed}"
