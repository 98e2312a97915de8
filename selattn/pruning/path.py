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

from selattn.data import Reading
from selattn.errors import SelattnError
from selattn.evaluation.text import Searched, Text
from selattn.eviction import Budgets
from selattn.pruning.until import Until
from selattn.utils.files import write_json, writing
from selattn.utils.folders import folders_for
from selattn.utils.journal import append_line, drop_half_a_line, whole_lines
from selattn.utils.locks import LOCK, locked

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
    """One search in a folder at a time; a search that has not begun when it ends leaves no folder behind."""
    refusal = f"another process is searching in {folder}: wait for it, or choose another --out"
    with folders_for(folder), locked(folder / LOCK, refusal):
        yield


def past_steps(folder: Path, settings: dict[str, Any]) -> list[Step]:
    """The path so far of the search that is in a folder, if there is one; it must have the same settings."""
    with writing(folder):
        if not (folder / SETTINGS).exists():
            return []
        _compare(read_settings(folder), settings, folder)
        if (folder / PATH).exists():
            drop_half_a_line(folder / PATH)
        return read_path(folder)


def begin(folder: Path, settings: dict[str, Any], first: Step) -> None:
    """Begin a search in a folder: both files, or none of them."""
    try:
        write_json(folder / SETTINGS, settings)
        append_line(folder / PATH, asdict(first))
    except BaseException:
        for name in (PATH, SETTINGS):
            (folder / name).unlink(missing_ok=True)
        raise


def read_settings(folder: Path) -> dict[str, Any]:
    """What the path of a folder depends on."""
    try:
        return dict(json.loads((folder / SETTINGS).read_text()))
    except FileNotFoundError:
        raise SelattnError(f"{folder} is not the folder of a search: it has no {SETTINGS}") from None
    except (OSError, ValueError, TypeError):
        raise SelattnError(f"{folder / SETTINGS} is damaged: delete the folder and search again") from None


def read_searched(folder: Path) -> Searched:
    """What the search in a folder has seen, for those who are to report on something else."""
    found = read_settings(folder)
    try:
        text = {**found["text"], "reading": Reading(**found["text"]["reading"])}
        return Searched(Text(**text), int(found["context"]), int(found["rows"]), str(found["tokens"]))
    except (KeyError, TypeError, ValueError):
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
    append_line(folder / PATH, asdict(step), "the search can go on from there")


def _compare(found: dict[str, Any], wanted: dict[str, Any], folder: Path) -> None:
    """Raise for the first setting that differs, in words where the setting is a checksum."""
    for name, there, value in _differences(found, wanted):
        if name == "fingerprint":
            model = found.get("model", wanted["model"])
            what = f"of the model {model}" if model != wanted["model"] else f"of {model} with other weights or settings"
        elif name == "tokens":
            what = f"on other tokens than {wanted['text']['source']} has now"
        else:
            what = f"with {name} {there!r}, not {value!r}"
        raise SelattnError(f"{folder} holds a search {what}: choose another --out, or delete the folder")


def _differences(found: dict[str, Any], wanted: dict[str, Any], where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Settings that differ, by name, and both values. What models and texts are called does not matter."""
    for name, value in wanted.items():
        there = found.get(name)
        if isinstance(value, dict) and isinstance(there, dict):
            yield from _differences(there, value, f"{where}{name}.")
        elif there != value and f"{where}{name}" not in ("model", "text.source"):
            yield f"{where}{name}", there, value
