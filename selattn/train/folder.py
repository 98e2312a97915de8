"""A run's folder: what is in it, which checkpoints are whole, and a log that resuming cannot spoil.

    run.json             the configuration
    log.jsonl            one record in each line, written through at once
    tensorboard/         the same for TensorBoard
    checkpoint-STEP/     the Trainer's own files, `progress.json`, and `whole.json` when all of it is there
    model/               when the run has ended: the model, its tokenizer, and `training_record.json`

A checkpoint counts only with `whole.json` in it, which is written last and names every file with its size; it is the
first to go when a checkpoint is deleted. So neither a kill while writing nor one while deleting leaves anything that
would be loaded.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selattn.errors import SelattnError

CONFIG, LOG, MODEL, RECORD = "run.json", "log.jsonl", "model", "training_record.json"
WHOLE, PROGRESS = "whole.json", "progress.json"
_PREFIX = "checkpoint-"


def checkpoint_path(run: Path, step: int) -> Path:
    """Where the Trainer puts the checkpoint of a step."""
    return run / f"{_PREFIX}{step}"


def seal(checkpoint: Path) -> None:
    """Declare a checkpoint whole: every file is on the disk, and is named with its size."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    for file in files:
        _to_disk(file)
    sizes = {file.relative_to(checkpoint).as_posix(): file.stat().st_size for file in files}
    write_json(checkpoint / WHOLE, {"files": sizes})


def is_whole(checkpoint: Path) -> bool:
    """Whether everything is there."""
    try:
        sizes = json.loads((checkpoint / WHOLE).read_text())["files"]
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def checkpoints(run: Path) -> dict[int, Path]:
    """The checkpoints of a run by step, the oldest first, whole or not."""
    found = {}
    for path in run.glob(_PREFIX + "*"):
        step = path.name.removeprefix(_PREFIX)
        if step.isdecimal():
            found[int(step)] = path
    return dict(sorted(found.items()))


def newest(run: Path) -> int | None:
    """The step of the newest whole checkpoint."""
    return max((step for step, path in checkpoints(run).items() if is_whole(path)), default=None)


def delete(checkpoint: Path) -> None:
    """Remove a checkpoint; from the first moment on it is no longer whole."""
    (checkpoint / WHOLE).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def delete_old(run: Path, keep: int) -> None:
    """Leave the `keep` newest."""
    for path in list(checkpoints(run).values())[:-keep]:
        delete(path)


def delete_halves(run: Path) -> None:
    """Remove what was half written when the run was killed."""
    for path in checkpoints(run).values():
        if not is_whole(path):
            delete(path)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    half = path.with_name(path.name + ".part")
    try:
        half.write_text(json.dumps(content, indent=2) + "\n")
        _to_disk(half)
        os.replace(half, path)
        _to_disk(path.parent)
    finally:
        half.unlink(missing_ok=True)


def _to_disk(path: Path) -> None:
    """So that after a power cut there is no complete name for incomplete bytes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check(run: Path, config: dict[str, Any], defaults: dict[str, Any], resume: bool, overwrite: bool) -> None:
    """Raise if the folder is not one to begin this run in, or to resume it in. Nothing is changed.

    A run that began before a setting existed has the default of it.
    """
    if not run.exists():
        return
    if not run.is_dir() or (any(run.iterdir()) and not (run / CONFIG).exists()):
        raise SelattnError(f"{run} is not empty and has no run in it: choose another folder with --out")
    if (run / CONFIG).exists() and not overwrite:
        if not resume:
            raise SelattnError(
                f"{run} has a run in it, {state_of(run)}; go on with --resume, or begin anew with --overwrite"
            )
        _check_same(config, dict(_flat(defaults)) | dict(_flat(json.loads((run / CONFIG).read_text()))), run)


def begin(run: Path, config: dict[str, Any], overwrite: bool) -> tuple[int | None, int]:
    """Make a checked folder ready, for this process alone.

    Returns the step of the checkpoint to go on from, or None to begin at the beginning, and a lock: an open file, to be
    closed when the run ends. It goes with the process, so a killed run leaves none.
    """
    run.mkdir(parents=True, exist_ok=True)
    lock = _claim(run)
    try:
        if (run / CONFIG).exists() and not overwrite:
            delete_halves(run)
            step = newest(run)
            cut_log(run / LOG, step or 0)
            return step, lock
        for old in run.iterdir():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        write_json(run / CONFIG, config)
        return None, lock
    except BaseException:
        os.close(lock)
        raise


def _claim(run: Path) -> int:
    """A lock on the folder itself."""
    lock = os.open(run, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise SelattnError(f"another process is training in {run}: wait for it, or choose another folder") from None
    except OSError:
        pass  # some network disks cannot lock a folder; nobody can tell there
    return lock


def finished(run: Path) -> bool:
    """Whether the trained model is there."""
    return (run / MODEL / RECORD).is_file()


def state_of(run: Path) -> str:
    """In words."""
    step = newest(run)
    if finished(run):
        return "which has ended"
    return "with no checkpoint yet" if step is None else f"with a checkpoint at step {step}"


def _check_same(config: dict[str, Any], old: dict[str, Any], run: Path) -> None:
    """A resumed run is the same run."""
    new = dict(_flat(config))
    for name in [*old, *new]:
        if old.get(name) != new.get(name):
            raise SelattnError(
                f"{run} has another run in it: {name} is {old.get(name)} there and {new.get(name)} here; "
                "resume with the settings that it began with, or choose another folder with --out"
            )


def _flat(config: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield above + name, value


def append_log(log: Path, record: dict[str, Any]) -> None:
    """One more record, handed to the operating system before this returns."""
    with log.open("a") as file:
        file.write(json.dumps(record) + "\n")


def read_log(log: Path) -> list[dict[str, Any]]:
    """Every whole record; a last line that a kill cut short is left out."""
    if not log.exists():
        return []
    found = []
    for line in log.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def cut_log(log: Path, step: int) -> None:
    """Leave out what was logged after `step`: it will be logged again."""
    kept = [record for record in read_log(log) if record["step"] <= step]
    half = log.with_name(log.name + ".part")
    half.write_text("".join(json.dumps(record) + "\n" for record in kept))
    os.replace(half, log)
