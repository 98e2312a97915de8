"""The tools of an experiment: its trained models, the text, and a memory of past measurements."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from lab.engine.experiment import Need, changed_beside, of_seed
from lab.engine.progress import Overview
from lab.engine.store import Store, Trained
from lab.scales import Scale
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
    """Past measurements: of earlier processes, by their file, and of this one."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._found: dict[str, Any] = {}

    def get(self, key: Mapping[str, Any], kind: type[T], measure: Callable[[], T]) -> T:
        """The value of this key, measured now if it is new."""
        name = json.dumps(dict(key), sort_keys=True)
        if name not in self._found:
            self._found[name] = self._parts.get(dict(key), kind, measure)
        value: T = self._found[name]
        return value


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
    ) -> None:
        self.scale, self.seeds, self.store = scale, tuple(seeds), store
        self.needs = {name: need.changed(settings) for name, need in needs.items()}
        self.memory, self.team, self.overview, self.questions = memory, team, overview, questions
        self.used: dict[str, Trained] = {}
        self.settings: dict[str, Any] = {
            "source": scale.data.source,
            "set": list(settings),
            "texts": dict(scale.texts),
            "positions": list(scale.tried),
        }
        self._tokens: dict[str, str] = {}
        self._plain, self._changes = tuple(needs.values()), settings

    def trained(self, name: str, seed: int | None = None) -> Trained:
        """A model that was needed; `seed` completes its name."""
        return self._trained(of_seed(name, seed), self.needs[of_seed(name, seed)])

    def train(self, name: str, need: Need) -> Trained:
        """A model that comes up on the way, such as one with budgets that were just found; trained if it is new."""
        return self._trained(name, changed_beside(need, self._plain, self._changes))

    def _trained(self, name: str, need: Need) -> Trained:
        if name in self.used:
            return self.used[name]
        model = self.store.find(need) or self.store.train(need, self.overview.display(name, need))
        if model is None:
            raise InterruptedTraining
        self._check_text(model)
        self.used[name] = model
        return model

    def losses(self, name: str, set_name: str = "validation") -> tuple[float | None, ...]:
        """The last loss of a model on a set of its run, for each seed; None where it diverged."""
        scores = [self.trained(name, seed).score(set_name) for seed in self.seeds]
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
        """The value of this key, measured now if it is new; the key has all that it depends on."""
        return self.memory.get(key, kind, measure)

    def place(self, what: str, **of: Any) -> Path:
        """A folder for work that can be resumed, named after what it depends on."""
        key = hashlib.blake2b(json.dumps(of, sort_keys=True).encode(), digest_size=8).hexdigest()
        return self.store.work / f"{what}-{key}"

    def _check_text(self, model: Trained) -> None:
        """Models of one table must have read the same text, whatever it is called."""
        data = model.need.run.data
        if not isinstance(data, TextData):
            return
        for other in self.used.values():
            theirs = other.need.run.data
            if not isinstance(theirs, TextData):
                continue
            same = replace(theirs, context=data.context, layout=data.layout) == data
            known = model.data_checksums and other.data_checksums  # early versions noted none
            if same and known and other.data_checksums != model.data_checksums:
                raise SelattnError(
                    f"{model.folder} and {other.folder} were trained on different texts of the same name: "
                    "give another --store for this text"
                )
