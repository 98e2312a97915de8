"""What a search for budgets leaves in its folder: its settings, and its path, an iteration in each line.

The path is a file that is only ever appended to, and does not depend on where a search stops. So a search can be
interrupted after any iteration and go on, one folder serves several thresholds, and an evaluation can follow the path
to any size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selattn.cache import Budgets
from selattn.errors import SelattnError, shortened
from selattn.evaluation.text import Searched, Text
from selattn.evaluation.tradeoff import SearchPath
from selattn.pruning.until import Until
from selattn.utils.files import LOCK, folders_for, locked, write_json, writing
from selattn.utils.journal import append_line, drop_half_a_line, whole_lines
from selattn.utils.typed import KindError, MissingError, from_json, to_json

SETTINGS, PATH = "search.json", "path.jsonl"


@dataclass(frozen=True)
class SearchSettings:
    """What decides the path of a search, and what model and text are called, which does not.

    Attributes:
        model: as the user wrote it.
        fingerprint: of its weights and config.
        text: what is searched on.
        tokens: the checksum of the text's tokens.
        rows: how many rows of it.
        batch: rows that are computed at a time.
        policy: who leaves when a layer is full.
        context, step, floor, lazy: see `selattn.pruning.Procedure`.
    """

    model: str
    fingerprint: str
    text: Text
    tokens: str
    rows: int
    batch: int
    policy: str
    context: int
    step: int
    floor: int | None
    lazy: bool


@dataclass(frozen=True)
class Work:
    """What a search has cost so far.

    Attributes:
        layer_evaluations: how often a layer was run over the whole search set.
        seconds: of wall clock.
    """

    layer_evaluations: float
    seconds: float


@dataclass(frozen=True)
class Step:
    """One iteration.

    Attributes:
        iteration: 0 is the model with K_l = N in every layer.
        layer: the one that gave tokens; None in iteration 0.
        budgets: K_l after it.
        loss: of the search set, nats per token.
        factor: layers * N / sum of K_l.
        tried: the loss of each candidate that was evaluated, by layer.
        work: since the search began; not part of the result.
    """

    iteration: int
    layer: int | None
    budgets: tuple[int, ...]
    loss: float
    factor: float
    tried: dict[int, float] = field(default_factory=dict)
    work: Work = field(default=Work(0.0, 0.0), compare=False)

    def __post_init__(self) -> None:
        Budgets(self.budgets).for_layers(len(self.budgets))  # which the compiled library would trust


def read_settings(folder: Path) -> SearchSettings:
    """What the path of a folder depends on."""
    file = folder / SETTINGS
    try:
        return from_json(SearchSettings, json.loads(file.read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        raise SelattnError(f"{folder} is not the folder of a search: it has no {SETTINGS}") from None
    except OSError as error:
        raise SelattnError(f"cannot read {shortened(str(file))}: {error.strerror}") from None
    except (ValueError, MissingError, KindError):
        raise SelattnError(f"{file} is damaged: delete the folder and search again") from None


def read_path(folder: Path) -> list[Step]:
    """The iterations of a folder; a last line that is not whole is none."""
    file = folder / PATH
    if not file.exists():
        return []
    try:
        path = [from_json(Step, json.loads(line)) for line in whole_lines(file)]
    except OSError as error:
        raise SelattnError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, MissingError, KindError):
        raise SelattnError(f"{file} is damaged: delete the folder and search again") from None
    if [step.iteration for step in path] != list(range(len(path))):
        raise SelattnError(f"{file} is damaged, iterations are missing: delete the folder and search again")
    return path


def read_search(folder: str | Path) -> SearchPath:
    """The path of the search in a folder, which a curve can follow."""
    settings = read_settings(Path(folder))
    budgets = tuple(step.budgets for step in read_path(Path(folder)))
    return SearchPath(Path(folder), settings.context, settings.policy, budgets)


def searched(folder: str | Path) -> Searched:
    """What the search in a folder has seen, for those who are to report on something else."""
    found = read_settings(Path(folder))
    return Searched(found.text, found.context, found.rows, found.tokens, str(folder))


def chosen(path: Sequence[Step], until: Until, context: int) -> tuple[int, bool]:
    """The last iteration that meets the threshold, and whether the path goes as far as the threshold."""
    limit = until.limit(path[0].loss)
    for step in path:
        if step.loss > limit:
            return step.iteration - 1, True
        if until.reached(step.budgets, context):
            return step.iteration, True
    return path[-1].iteration, False


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """One search in a folder at a time; a search that has not begun when it ends leaves no folder behind."""
    refusal = f"another process is searching in {folder}: wait for it, or choose another --out"
    with folders_for(folder), locked(folder / LOCK, refusal):
        yield


def past_steps(folder: Path, settings: SearchSettings) -> list[Step]:
    """The path so far of the search that is in a folder, if there is one; it must have the same settings."""
    with writing(folder):
        if not (folder / SETTINGS).exists():
            return []
        _compare(read_settings(folder), settings, folder)
        if (folder / PATH).exists():
            drop_half_a_line(folder / PATH)
        return read_path(folder)


def begin(folder: Path, settings: SearchSettings, first: Step) -> None:
    """Begin a search in a folder: both files, or none of them."""
    try:
        write_json(folder / SETTINGS, to_json(settings))
        append_line(folder / PATH, to_json(first))
    except BaseException:
        for name in (PATH, SETTINGS):
            (folder / name).unlink(missing_ok=True)
        raise


def append(folder: Path, step: Step) -> None:
    """Add an iteration; it is on the disk when this returns."""
    append_line(folder / PATH, to_json(step), "the search can go on from there")


def _compare(found: SearchSettings, wanted: SearchSettings, folder: Path) -> None:
    """Raise for the first setting that differs, in words where the setting is a checksum."""
    for name, there, value in _differences(to_json(found), to_json(wanted)):
        if name == "fingerprint":
            other = found.model != wanted.model
            what = f"of the model {found.model}" if other else f"of {found.model} with other weights or settings"
        elif name == "tokens":
            what = f"on other tokens than {wanted.text.source} has now"
        else:
            what = f"with {name} {there!r}, not {value!r}"
        raise SelattnError(f"{folder} holds a search {what}: choose another --out, or delete the folder")


def _differences(
    found: Mapping[str, Any], wanted: Mapping[str, Any], where: str = ""
) -> Iterator[tuple[str, object, object]]:
    """Settings that differ, by name, and both values. What models and texts are called does not matter."""
    for name, value in wanted.items():
        there = found.get(name)
        if isinstance(value, dict) and isinstance(there, dict):
            yield from _differences(there, value, f"{where}{name}.")
        elif there != value and f"{where}{name}" not in ("model", "text.source"):
            yield f"{where}{name}", there, value
