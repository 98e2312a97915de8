"""What a search for budgets leaves in its folder: its settings, and its path, an iteration in each line.

The path does not depend on where a search stops, so an evaluation can follow it to any size. `selattn.pruning` writes
it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from selattn.cache import Budgets
from selattn.errors import SelattnError, shortened
from selattn.evaluation.text import Searched, Text
from selattn.utils.journal import whole_lines
from selattn.utils.typed import KindError, MissingError, from_json

SETTINGS, PATH = "search.json", "path.jsonl"
Skip = int | str | Path


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

    @property
    def searched(self) -> Searched:
        """What the search has seen, for those who are to report on something else."""
        return Searched(self.text, self.context, self.rows, self.tokens)


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


def skip_name(skip: Skip) -> int | str:
    """The same for a record."""
    return skip if isinstance(skip, int) else str(skip)


def skipped(skip: Skip) -> int | Searched:
    """What is left out: the rows of a search on so many, or what the search in a folder has seen."""
    return skip if isinstance(skip, int) else read_settings(Path(skip)).searched
