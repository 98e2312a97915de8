"""The folder of a search for budgets: its settings, and its path, an iteration in each line.

The path is a file that is only ever appended to, and does not depend on where a search stops. So a search can be
interrupted after any iteration and resumed, one folder serves several thresholds, and an evaluation can follow the path
to any size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from selattn.errors import SelattnError, shortened
from selattn.evaluation.text import Searched, Text
from selattn.evaluation.tradeoff import SearchPath
from selattn.pruning.search import Step
from selattn.utils.files import LOCK, folders_for, locked, write_json, writing
from selattn.utils.journal import append_line, drop_half_a_line, whole_lines
from selattn.utils.typed import KindError, MissingError, flat, from_json, to_json

SETTINGS, PATH = "search.json", "path.jsonl"


@dataclass(frozen=True)
class SearchSettings:
    """All that decides the path of a search; only the names of model and text do not.

    Attributes:
        model: as the user wrote it.
        fingerprint: of its weights and config.
        text: what is searched on.
        tokens: the checksum of the text's tokens.
        rows: how many rows of it.
        batch: rows that are computed at a time.
        policy: which token is evicted when a layer is full.
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


def read_settings(folder: Path) -> SearchSettings:
    """The settings of the search in a folder."""
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
    """The iterations of a folder; a last line that was not written to its end is left out."""
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
    """The rows that the search in a folder has seen, so that an evaluation can use others."""
    settings = read_settings(Path(folder))
    return Searched(settings.text, settings.context, settings.rows, settings.tokens, str(folder))


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
    append_line(folder / PATH, to_json(step), "the search can be resumed from there")


def _compare(there: SearchSettings, wanted: SearchSettings, folder: Path) -> None:
    """Raise for the first setting that differs, in words where the setting is a checksum."""
    before = dict(flat(to_json(there)))
    for name, value in flat(to_json(wanted)):
        if before.get(name) == value or name in ("model", "text.source"):  # names do not matter
            continue
        if name == "fingerprint":
            other = there.model != wanted.model
            what = f"of the model {there.model}" if other else f"of {there.model} with other weights or settings"
        elif name == "tokens":
            what = f"on other tokens than {wanted.text.source} has now"
        else:
            what = f"with {name} {before.get(name)!r}, not {value!r}"
        raise SelattnError(f"{folder} holds a search {what}: choose another --out, or delete the folder")
