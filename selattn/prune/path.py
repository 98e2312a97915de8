"""The path of a search: one record for each iteration, in a file that is only ever appended to.

The path does not depend on where a search stops. So a search can be interrupted after any iteration and go on, and one
folder serves several thresholds: what is there is read, what is missing is searched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from selattn.cache import Budgets
from selattn.data.folders import alone_with
from selattn.data.lines import append_line, drop_half_a_line, whole_lines
from selattn.errors import SelattnError
from selattn.prune.until import Until

SETTINGS, PATH = "search.json", "path.jsonl"


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
        work: layer evaluations and seconds since the search began; not part of the result.
    """

    iteration: int
    layer: int | None
    budgets: tuple[int, ...]
    loss: float
    factor: float
    tried: dict[int, float] = field(default_factory=dict)
    work: dict[str, float] = field(default_factory=dict, compare=False)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Step:
        """From a line of the file."""
        budgets = Budgets(tuple(found["budgets"])).for_layers(len(found["budgets"]))
        tried = {int(layer): float(loss) for layer, loss in found["tried"].items()}
        if not {"layer_evaluations", "seconds"} <= found["work"].keys():
            raise ValueError("its work is missing")
        return cls(**{**found, "budgets": budgets, "loss": float(found["loss"]), "tried": tried})


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
    """One search in a folder at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SelattnError(f"cannot write {folder}: {error.strerror}") from None
    with alone_with(folder, f"another process is searching in {folder}: wait for it, or choose another --out"):
        yield


def open_folder(folder: Path, settings: dict[str, Any]) -> list[Step]:
    """Begin a search in a folder, or take up the one that is there if it has the same settings: its path so far."""
    file = folder / SETTINGS
    try:
        if file.exists():
            _compare(read_settings(folder), settings, folder)
            if (folder / PATH).exists():
                drop_half_a_line(folder / PATH)
            return read_path(folder)
        half = file.with_name(file.name + ".part")
        half.write_text(json.dumps(settings, indent=2) + "\n")
        half.replace(file)
    except OSError as error:
        raise SelattnError(f"cannot write {folder}: {error.strerror}") from None
    return []


def read_settings(folder: Path) -> dict[str, Any]:
    """What the path of a folder depends on."""
    try:
        return dict(json.loads((folder / SETTINGS).read_text()))
    except FileNotFoundError:
        raise SelattnError(f"{folder} is not the folder of a search: it has no {SETTINGS}") from None
    except (OSError, ValueError, TypeError):
        raise SelattnError(f"{folder / SETTINGS} is damaged: delete the folder and search again") from None


def read_path(folder: Path) -> list[Step]:
    """The iterations of a folder; a last line that is not whole is none."""
    file = folder / PATH
    if not file.exists():
        return []
    try:
        path = [Step.from_json(json.loads(line)) for line in whole_lines(file)]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise SelattnError(f"{file} is damaged: delete the folder and search again") from None
    if [step.iteration for step in path] != list(range(len(path))):
        raise SelattnError(f"{file} is damaged, iterations are missing: delete the folder and search again")
    return path


def append(folder: Path, step: Step) -> None:
    """Add an iteration; it is on the disk when this returns."""
    try:
        append_line(folder / PATH, asdict(step))
    except OSError as error:
        raise SelattnError(f"cannot write {folder / PATH}: {error.strerror}; the search can go on from there") from None


def _compare(found: dict[str, Any], wanted: dict[str, Any], folder: Path, where: str = "") -> None:
    """Raise for the first setting that differs, by its own name where settings are nested."""
    for name, value in wanted.items():
        there = found.get(name)
        if isinstance(value, dict) and isinstance(there, dict):
            _compare(there, value, folder, f"{where}{name}.")
        elif there != value:
            raise SelattnError(
                f"{folder} holds a search with {where}{name} {there!r}, not {value!r}: "
                "choose another --out, or delete the folder"
            )
