"""A run's folder: what is in it, who may train there, and a log that resuming cannot spoil.

run.json             the configuration
log.jsonl            one record in each line, written through at once
tensorboard/         the same for TensorBoard
checkpoint-STEP/     see `selattn.training.checkpoints`
model/               when the run has ended: the model, its tokenizer, and `training_record.json`
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selattn.errors import SelattnError
from selattn.training.checkpoints import Choice, choose, delete, newest
from selattn.training.record import LogLine, TrainingRecord
from selattn.utils.files import LOCK, Lock, write_json, write_text
from selattn.utils.journal import append_line, whole_lines
from selattn.utils.records import check_folder, read_body

CONFIG, LOG, MODEL, RECORD = "run.json", "log.jsonl", "model", "training_record.json"


class Claim:
    """This process's claim on a run's folder, in which no other may train meanwhile."""

    def __init__(self, run: Path) -> None:
        self._run, self._lock = run, Lock(run / LOCK)

    @property
    def held(self) -> bool:
        """Whether it was taken."""
        return self._lock.held

    def take(self) -> None:
        """Claim the folder if it exists; raise if another process has it."""
        if not self.held and self._run.is_dir():
            self._lock.take(
                f"another process is training in {self._run}: wait for it, or choose another folder with --out"
            )

    def take_if_free(self) -> bool:
        """Claim the folder, which exists, unless another process has it; whether it is claimed."""
        return self._lock.take_if_free()

    def close(self) -> None:
        """Let others train there."""
        self._lock.close()


@dataclass(frozen=True)
class Plan:
    """What is to happen in a run's folder.

    Attributes:
        goes_on: whether a run that was begun goes on; else the folder is emptied, and a run begins.
        choice: the checkpoint that it goes on from.
    """

    goes_on: bool = False
    choice: Choice = field(default_factory=Choice)


def check(run: Path, config: dict[str, Any], defaults: dict[str, Any], resume: bool, overwrite: bool) -> Plan:
    """Raise if the folder is not one to begin this run in, or to resume it in. Nothing is changed.

    A run that began before a setting existed has the default of it.
    """
    check_folder(run)
    if not run.exists():
        return Plan()
    if not run.is_dir() or (_contents(run) and not (run / CONFIG).exists()):
        raise SelattnError(f"{run} is not empty and has no run in it: choose another folder with --out")
    if overwrite or not (run / CONFIG).exists():
        return Plan()
    if not resume:
        raise SelattnError(
            f"{run} has a run in it, {state_of(run)}; go on with --resume, or begin anew with --overwrite"
        )
    _check_same(config, dict(flat(defaults)) | dict(flat(_read_config(run))), run)
    if finished(run):
        return Plan(goes_on=True)
    choice = choose(run)
    check_log(run / LOG, choice.step or 0)
    return Plan(True, choice)


def begin(run: Path, config: dict[str, Any], plan: Plan, claim: Claim) -> None:
    """Make a checked folder ready, for this process alone."""
    new = not run.exists()
    run.mkdir(parents=True, exist_ok=True)
    if not claim.held:
        claim.take()
        if _contents(run):
            raise SelattnError(f"another process has begun a run in {run}: choose another folder with --out")
    if plan.goes_on:
        for path, _ in plan.choice.left_out:
            delete(path)
        _cut_log(run / LOG, plan.choice.step or 0)
        return
    for old in _contents(run):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    try:
        write_json(run / CONFIG, config)
    except BaseException:
        if new:
            claim.close()
            run.rmdir()
        raise


def _contents(run: Path) -> list[Path]:
    """What lies in a run's folder besides the claim on it."""
    return [path for path in run.iterdir() if path.name != LOCK]


def finished(run: Path) -> bool:
    """Whether the trained model is there."""
    return (run / MODEL / RECORD).is_file()


def read_finished(run: Path) -> TrainingRecord:
    """The training record of a run that has ended."""
    file = run / MODEL / RECORD
    try:
        return read_body(file, TrainingRecord)
    except SelattnError as error:
        raise SelattnError(
            f"{file} is damaged: delete {run / MODEL} and go on with --resume, which writes the model again"
        ) from error


def state_of(run: Path) -> str:
    """How far a run has come, in words for a message."""
    step = newest(run)
    if finished(run):
        return "which has ended"
    return "with no checkpoint yet" if step is None else f"with a checkpoint at step {step}"


def _read_config(run: Path) -> dict[str, Any]:
    file = run / CONFIG
    try:
        found = json.loads(file.read_bytes())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SelattnError(
            f"{file} is damaged: put it back from a copy, or begin anew with --overwrite; "
            "whether this is the run that was begun cannot be told"
        )
    return found


def _check_same(config: dict[str, Any], old: dict[str, Any], run: Path) -> None:
    """A resumed run is the same run."""
    new = dict(flat(config))
    for name in [*old, *new]:
        if old.get(name) != new.get(name):
            raise SelattnError(
                f"{run} has another run in it: {name} is {old.get(name)} there and {new.get(name)} here; "
                "resume with the settings that it began with, or choose another folder with --out"
            )


def flat(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting by its dotted name, `optimizer.lr`."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{name}.")
        else:
            yield above + name, value


def append_log(log: Path, record: LogLine) -> None:
    """One more record, handed to the operating system before this returns."""
    append_line(log, record, durable=False)


def read_log(log: Path) -> list[LogLine]:
    """Every record up to the first that is not whole, which is the last one if a kill cut it short."""
    if not log.exists():
        return []
    found: list[LogLine] = []
    for line in log.read_bytes().splitlines():
        record = _record(line)
        if record is None:
            break
        found.append(record)
    return found


def _record(line: bytes) -> LogLine | None:
    try:
        found: LogLine = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("step"), int) else None


def check_log(log: Path, step: int) -> None:
    """Raise if a line of the log up to `step` is damaged."""
    if not step or not log.exists():
        return
    for number, line in enumerate(whole_lines(log), 1):
        record = _record(line)
        if record is None:
            raise SelattnError(
                f"{log}, line {number}, is damaged: put the log back from a copy, or delete it and go on without "
                "what was logged so far"
            )
        if record["step"] > step:
            break


def _cut_log(log: Path, step: int) -> None:
    """Leave out what was logged after `step`: it will be logged again."""
    kept = itertools.takewhile(lambda record: record["step"] <= step, read_log(log))
    write_text(log, "".join(json.dumps(record) + "\n" for record in kept))
