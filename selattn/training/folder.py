"""A run's folder: who may train there, a log that resuming cannot spoil, and checkpoints.

    run.json             the configuration
    log.jsonl            one record in each line, written through at once
    tensorboard/         the same for TensorBoard
    checkpoint-STEP/     the Trainer's own files, `progress.json`, and `whole.json` when all of it is there
    model/               when the run has ended: the model, its tokenizer, and `training_record.json`

A checkpoint counts only with `whole.json` in it, which is written last and names every file with its size and its
checksum; it is the first to go when a checkpoint is deleted. So neither a kill while writing nor one while deleting
leaves anything that would be loaded, and a file that has changed since is noticed before it is.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selattn.errors import SelattnError
from selattn.training.record import LogLine, TrainingRecord
from selattn.utils.files import LOCK, Lock, to_disk, write_json, write_text
from selattn.utils.journal import append_line, whole_lines
from selattn.utils.records import check_folder, read_body
from selattn.utils.typed import flat

CONFIG, LOG, MODEL, RECORD = "run.json", "log.jsonl", "model", "training_record.json"
WHOLE, PROGRESS = "whole.json", "progress.json"  # in a checkpoint
_PREFIX = "checkpoint-"


@dataclass(frozen=True)
class Plan:
    """The state of a run's folder, before anything in it is changed.

    Attributes:
        resumes: whether a run is resumed; else the folder is emptied, and a run begins.
        step: of the newest whole checkpoint; None if none was written to its end.
        skipped: newer checkpoints, and what is wrong with each.
    """

    resumes: bool = False
    step: int | None = None
    skipped: tuple[tuple[Path, str], ...] = ()


def lock_of(run: Path) -> Lock:
    """The lock of the one process that may train in a run's folder."""
    return Lock(run / LOCK)


def take(run: Path, lock: Lock) -> None:
    """Lock the folder if it exists; raise if another process has it."""
    if not lock.held and run.is_dir():
        lock.take(f"another process is training in {run}: wait for it, or choose another folder with --out")


def check(run: Path, config: dict[str, Any], defaults: dict[str, Any], resume: bool, overwrite: bool) -> Plan:
    """Raise if this run cannot begin or resume in the folder. Nothing is changed.

    A run that began before a setting existed has its default.
    """
    check_folder(run)
    if not run.exists():
        return Plan()
    if not run.is_dir() or (_contents(run) and not (run / CONFIG).exists()):
        raise SelattnError(f"{run} is not empty and has no run in it: choose another folder with --out")
    if overwrite or not (run / CONFIG).exists():
        return Plan()
    if not resume:
        step = newest(run)
        state = "with no checkpoint yet" if step is None else f"with a checkpoint at step {step}"
        state = "which has ended" if finished(run) else state
        raise SelattnError(f"{run} has a run in it, {state}; continue it with --resume, or start over with --overwrite")
    _check_same(config, defaults, _read_config(run), run)
    if finished(run):
        return Plan(resumes=True)
    plan = choose(run)
    _check_log(run / LOG, plan.step or 0)
    return plan


def begin(run: Path, config: dict[str, Any], plan: Plan, lock: Lock) -> None:
    """Make a checked folder ready, for this process alone."""
    new = not run.exists()
    run.mkdir(parents=True, exist_ok=True)
    if not lock.held:
        take(run, lock)
        if _contents(run):
            raise SelattnError(f"another process has begun a run in {run}: choose another folder with --out")
    if plan.resumes:
        for path, _ in plan.skipped:
            delete(path)
        logged = itertools.takewhile(lambda record: record["step"] <= (plan.step or 0), read_log(run / LOG))
        # What came after the checkpoint will be logged again.
        write_text(run / LOG, "".join(json.dumps(record) + "\n" for record in logged))
        return
    for old in _contents(run):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    try:
        write_json(run / CONFIG, config)
    except BaseException:
        if new:
            lock.close()
            run.rmdir()
        raise


def _contents(run: Path) -> list[Path]:
    return [path for path in run.iterdir() if path.name != LOCK]


def _read_config(run: Path) -> dict[str, Any]:
    file = run / CONFIG
    try:
        config = json.loads(file.read_bytes())
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise SelattnError(
            f"{file} is damaged, so whether this is the run that was begun cannot be told: put it back from a copy, "
            "or start over with --overwrite"
        )
    return config


def _check_same(config: dict[str, Any], defaults: dict[str, Any], before: dict[str, Any], run: Path) -> None:
    new, old = dict(flat(config)), dict(flat(defaults)) | dict(flat(before))
    for name in [*old, *new]:
        if {} in (old.get(name), new.get(name)):  # an empty section
            continue
        if old.get(name) != new.get(name):
            raise SelattnError(
                f"{run} has another run in it: {name} is {old.get(name)} there and {new.get(name)} here; "
                "resume with the settings that it began with, or choose another folder with --out"
            )


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
            f"{file} is damaged: delete {run / MODEL} and continue with --resume, which writes the model again"
        ) from error


# ---- the log ----


def append_log(log: Path, record: LogLine) -> None:
    """Add a record; the operating system has it when this returns."""
    append_line(log, record, durable=False)


def read_log(log: Path) -> list[LogLine]:
    """Every record up to the first that is not whole, which is the last one if a kill cut it short."""
    if not log.exists():
        return []
    records = map(_record, log.read_bytes().splitlines())
    return list(itertools.takewhile(lambda record: record is not None, records))  # type: ignore[arg-type]


def _record(line: bytes) -> LogLine | None:
    try:
        record: LogLine = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def _check_log(log: Path, step: int) -> None:
    """Raise if a line of the log up to `step` is damaged."""
    for number, line in enumerate(whole_lines(log) if step and log.exists() else (), 1):
        record = _record(line)
        if record is None:
            raise SelattnError(
                f"{log}, line {number}, is damaged: put the log back from a copy, or delete it and continue without "
                "what was logged so far"
            )
        if record["step"] > step:
            break


# ---- checkpoints ----


def checkpoint_path(run: Path, step: int) -> Path:
    """Where the Trainer puts the checkpoint of a step."""
    return run / f"{_PREFIX}{step}"


def checkpoints(run: Path) -> dict[int, Path]:
    """The checkpoints of a run by step, the oldest first, whole or not."""
    steps = (path.name.removeprefix(_PREFIX) for path in run.glob(_PREFIX + "*"))
    return {step: checkpoint_path(run, step) for step in sorted(int(step) for step in steps if step.isdecimal())}


def newest(run: Path) -> int | None:
    """The step of the newest whole checkpoint, by the sizes of its files; `choose` reads them all."""
    return max((step for step, path in checkpoints(run).items() if damage(path, read=False) is None), default=None)


def choose(run: Path) -> Plan:
    """Resume from the newest checkpoint of which every byte is as it was written.

    Raises if all of them are damaged: to begin at step 0 without a word would throw the work away.
    """
    skipped, damaged = [], False
    for step, path in reversed(checkpoints(run).items()):
        if not (path / WHOLE).exists():
            skipped.append((path, "it was not written to its end"))
            continue
        wrong = damage(path)
        if wrong is None:
            return Plan(True, step, tuple(skipped))
        skipped.append((path, wrong))
        damaged = True
    if damaged:
        each = ", ".join(f"{path.name} ({wrong})" for path, wrong in skipped)
        raise SelattnError(
            f"there is no whole checkpoint in {run}: {each}; put one back from a copy, or start over with --overwrite"
        )
    return Plan(True, None, tuple(skipped))


def seal(checkpoint: Path) -> None:
    """Declare a checkpoint whole: every file is on the disk, and is named with its size and its checksum."""
    files = {path.relative_to(checkpoint).as_posix(): path for path in sorted(checkpoint.rglob("*")) if path.is_file()}
    for file in files.values():
        to_disk(file)
    sizes = {name: file.stat().st_size for name, file in files.items()}
    checksums = {name: _checksum(file) for name, file in files.items()}
    write_json(checkpoint / WHOLE, {"files": sizes, "checksums": checksums})


def damage(checkpoint: Path, read: bool = True) -> str | None:
    """The damage of a checkpoint in words, or None. With `read` every byte is checked, else only the sizes are."""
    try:
        sealed = json.loads((checkpoint / WHOLE).read_bytes())
        sizes, checksums = dict(sealed["files"]), dict(sealed["checksums"])
    except (OSError, ValueError, TypeError, KeyError):
        return f"{WHOLE} is damaged"
    for name, size in sizes.items():
        file = checkpoint / name
        if not file.exists():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes, not {size}"
    changed = (name for name in sizes if read and checksums.get(name) != _checksum(checkpoint / name))
    return next((f"{name} has changed since it was written" for name in changed), None)


def delete(checkpoint: Path) -> None:
    """Remove a checkpoint; from the first moment on it is no longer whole."""
    (checkpoint / WHOLE).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def delete_old(run: Path, keep: int) -> None:
    """Leave the `keep` newest."""
    for path in list(checkpoints(run).values())[:-keep]:
        delete(path)


def delete_halves(run: Path) -> None:
    """Remove checkpoints that were not written to their end."""
    for path in checkpoints(run).values():
        if not (path / WHOLE).exists():
            delete(path)


def _checksum(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
