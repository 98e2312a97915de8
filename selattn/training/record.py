"""The record of a run: the lines of its log, the record of its model, how both are shown, and the training's key.

Two runs with one key are the same training, so that one model serves both. The key has what decides the weights and the
loss. It leaves out the run's name, how often it is evaluated, logged and saved, how it is shared out among devices, and
where its text lies, so that a run can be found again from another folder. Whether the text is the same is told by the
checksums in the training record.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from selattn.errors import SelattnError
from selattn.models import SelectiveConfig
from selattn.training.config import RunConfig, TextData
from selattn.utils.progress import Progress
from selattn.utils.typed import from_json, if_any

_WHOLE = ("optimizer", "schedule", "shrink")
_PARTS = {"batch": ("size",), "evaluation": ("rows", "target"), "machine": ("precision",), "start": ("ramp",)}
_LEVELS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Score:
    """An evaluation on one set.

    Attributes:
        loss: nats per token.
        accuracy: of a task, the share of samples solved; None of a text.
        kept: the fraction that each layer keeps; None for layers that do not select, and None if none does.
    """

    loss: float
    accuracy: float | None = if_any(default=None)
    kept: list[float | None] | None = None


@dataclass(frozen=True)
class TrainingLosses:
    """Of the last record of the log: see `LogLine`."""

    loss: float
    lm_loss: float
    memory_loss: float
    kept: list[float | None] | None = None
    kl_loss: float | None = if_any(default=None)


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """The record in a trained model's folder.

    Attributes:
        run: the whole configuration, `RunConfig.to_dict`.
        data_checksums: of the tokens of each split of a text; empty for a task, and in old records.
        parameters: of the model.
        steps: that were taken.
        tokens: that were trained on.
        seconds: of wall clock.
        devices: that trained.
        training: the last losses; empty if none was logged.
        evaluation: the last, by the name of the set.
    """

    run: dict[str, Any]
    data_checksums: dict[str, str] = field(default_factory=dict)
    parameters: int
    steps: int
    tokens: int
    seconds: float
    devices: int
    training: TrainingLosses | dict[str, float]
    evaluation: dict[str, Score]


class Wall(TypedDict):
    """Of wall clock: two runs that are the same differ in it."""

    seconds: float
    tokens_per_second: NotRequired[float]


class InForce(TypedDict, total=False):
    """Settings in force in a step, of those that change on the way."""

    selection_strength: float
    cache_budgets: list[int]


class Losses(TypedDict):
    """Of the training since the last line: `loss` is `lm_loss` and `memory_loss` together; `tokens` are all so far.

    With a teacher, `kl_loss` has a share in `loss`, and `lm_loss` the rest of it.
    """

    loss: float
    lm_loss: float
    memory_loss: float
    kept: list[float | None] | None
    tokens: int
    kl_loss: NotRequired[float]


class LogLine(InForce):
    """A line of the log: of the training since the last one, with the fields of `Losses`, or of an evaluation."""

    step: int
    wall: Wall
    loss: NotRequired[float]
    lm_loss: NotRequired[float]
    memory_loss: NotRequired[float]
    kl_loss: NotRequired[float]
    kept: NotRequired[list[float | None] | None]
    tokens: NotRequired[int]
    grad_norm: NotRequired[float]
    learning_rate: NotRequired[float]
    evaluation: NotRequired[dict[str, Any]]  # `Score` by the name of the set, as JSON has it


# ---- in the terminal ----


def tell(progress: Progress, record: LogLine) -> None:
    """Show a line of the log: losses and speed, or an evaluation, which gets a line of its own."""
    if "evaluation" in record:
        progress.say(f"step {record['step']:,}  {shown(from_json(dict[str, Score], record['evaluation']))}")
        return
    parts = [f"loss {record['loss']:.3f}"]
    if "kl_loss" in record:
        parts.append(f"next token {record['lm_loss']:.3f}  KL {record['kl_loss']:.3f}")
    if kept := record["kept"]:
        parts.append(f"kept {shares(kept)}")
    progress.advance(0, "  ".join([*parts, f"{record['wall']['tokens_per_second']:,.0f} tokens/s"]))


def shown(scores: Mapping[str, Score]) -> str:
    """An evaluation: each set with its loss and, for a task, its accuracy."""
    parts = []
    for name, score in scores.items():
        accuracy = "" if score.accuracy is None else f", {score.accuracy:.1%} right"
        parts.append(f"{name.replace('_', ' ')}: loss {score.loss:.4f}{accuracy}")
    return "  ".join(parts)


def shares(kept: Sequence[float | None]) -> str:
    """The kept fraction of each layer: numbers for a few, small columns for many."""
    if len(kept) <= 4:
        return " ".join("-" if share is None else f"{share:.2f}" for share in kept)
    known = [share for share in kept if share is not None]
    columns = "".join(" " if share is None else _LEVELS[min(int(share * len(_LEVELS)), 7)] for share in kept)
    return f"{columns} {sum(known) / len(known):.2f}"


# ---- the key of a training ----


def training_key(run: Mapping[str, Any], after: str | None = None) -> str:
    """The key of a run, given as `RunConfig.to_dict` or a training record has it.

    Args:
        run: its settings; those that an earlier version did not have are at their defaults.
        after: the key of the training whose model it begins with; None for new weights.
    """
    decided = {**deciding_settings(run), "after": after}
    return hashlib.blake2b(json.dumps(decided, sort_keys=True).encode(), digest_size=10).hexdigest()


def deciding_settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that decide its weights and its loss, seed included; equal ones are written alike."""
    whole = RunConfig("", TextData()).to_dict()
    if unknown := run.keys() - whole.keys():
        raise SelattnError(f"a run has no settings {', '.join(sorted(unknown))}: another version wrote this one")
    settings: dict[str, Any] = {}
    for name in (*_WHOLE, *_PARTS):
        section = {**whole[name], **run.get(name, {})}
        settings[name] = {key: section[key] for key in _PARTS.get(name, section)}
    data = dict(run["data"])
    if "source" in data:  # a task is its settings
        usual = dataclasses.asdict(TextData()) if data.get("kind") == "text" else {}
        data = {**usual, **data, "source": source_name(data["source"])}
    model = {name: _listed(value) for name, value in run.get("model", {}).items()}
    model = {name: value for name, value in model.items() if value != _listed(getattr(SelectiveConfig, name, None))}
    return {**settings, "data": data, "model": model, "seed": run.get("seed", 0)}


def source_name(source: str) -> str:
    """The name of a text wherever it lies: that of its file or folder, or the source itself."""
    path = Path(source)
    return path.name if path.exists() or ("/" in source and not source.startswith("hub:")) else source


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
