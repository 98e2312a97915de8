"""Files of JSON lines that are only ever appended to: a process that is killed loses no line that it has written.

`Parts` are what an evaluation has measured, in such a file beside the record until that is written. A part is a number,
or a few, that take a while: a loss, a task, a point of a curve. Its key is everything that they depend on. A part is on
the disk before the next one is measured, so an evaluation can be interrupted at any time, and the same command takes
from the file what is there; a part with another key is left alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from selattn.errors import SelattnError
from selattn.utils.files import LOCK, Lock, folders_for, writing
from selattn.utils.records import machine, versions, write_record
from selattn.utils.typed import KindError, MissingError, from_json, to_json

if TYPE_CHECKING:
    from selattn.utils.distributed import Team
    from selattn.utils.progress import Progress

Key = dict[str, Any]
_SECONDS = 0.5  # between two looks whether another evaluation has ended
_T = TypeVar("_T")


def append_line(file: Path, value: Any, advice: str = "", durable: bool = True) -> None:
    """Add a line. It is on the disk when this returns; unless `durable`, the system has it and may take its time."""
    with writing(file, advice), file.open("a") as opened:
        opened.write(json.dumps(value) + "\n")
        opened.flush()
        if durable:
            os.fsync(opened.fileno())


def whole_lines(file: Path) -> list[bytes]:
    """The lines of a file; a last one that is not whole is none."""
    return file.read_bytes().split(b"\n")[:-1]


def drop_half_a_line(file: Path) -> None:
    """What a process that was killed has begun to write is not to stand in front of the next line."""
    os.truncate(file, file.read_bytes().rfind(b"\n") + 1)


class Parts:
    """Measures what has not been measured. The leading process knows the file, and tells the others what it has found.

    Parts of one key are several measurements, as if the same model were named twice: each is taken once.
    """

    def __init__(self, file: Path | None, team: Team) -> None:
        """Without a file nothing is kept."""
        self._file, self._team = file, team
        # A record names one machine and one set of versions: numbers of others do not belong in it.
        self._around = {"versions": versions(), "machine": machine()}
        self._found: dict[str, list[Any]] = {}
        if file is not None and team.leads:
            for name, value in _read(file):
                self._found.setdefault(name, []).append(value)

    def known(self, keys: Iterable[Key]) -> int:
        """How many of these have been measured before, to the leading process."""
        counts = Counter(map(self._name, keys))
        return sum(min(count, len(self._found.get(name, []))) for name, count in counts.items())

    def get(self, key: Key, kind: type[_T], measure: Callable[[], _T], alone: bool = False) -> _T:
        """What was measured before, or else is now: a value of type `kind`, see `selattn.utils.typed`.

        All processes call this together: some of them measuring while others do not would wait for each other forever.
        So the leading one decides, whatever key the others come to. With `alone` only the leading process calls.
        """
        past = self._take(key, kind) if alone else self._team.by_one(lambda: self._take(key, kind))
        if past:
            return past[0]
        value = measure()
        if self._file is not None and self._team.leads:
            append_line(self._file, {"key": self._whole(key), "value": to_json(value)}, "what it holds is kept")
        return value

    def remove(self) -> None:
        """The record is written."""
        if self._file is not None and self._team.leads:
            self._file.unlink()

    def _take(self, key: Key, kind: type[_T]) -> list[_T]:
        """A list of one, or empty; what is of another kind is measured anew."""
        there = self._found.get(self._name(key), [])
        while there:
            with contextlib.suppress(MissingError, KindError):
                return [from_json(kind, there.pop(0))]
        return []

    def _whole(self, key: Key) -> Key:
        return {**key, **self._around}

    def _name(self, key: Key) -> str:
        return _name(self._whole(key))


@contextlib.contextmanager
def kept_parts(record: Path | None, keys: Sequence[Key], team: Team, progress: Progress) -> Iterator[Parts]:
    """The parts of an evaluation that consists of these; `progress` is told how many of them are there."""
    with open_parts(record, team) as parts:
        known = parts.known(keys)
        if known:
            progress.say(f"{known} of {len(keys)} parts were measured before")
        yield parts


def write_whole(record: Path, body: object, seed: int) -> None:
    """The record of an evaluation; if it cannot be written, what was measured is not lost."""
    try:
        write_record(record, body, seed)
    except SelattnError as error:
        raise SelattnError(f"{error}; what was measured is kept beside it, and the same command goes on") from None


@contextlib.contextmanager
def open_parts(record: Path | None, team: Team, wait: Callable[[], None] | None = None) -> Iterator[Parts]:
    """The parts that belong to a record, for one evaluation at a time.

    Args:
        record: None keeps nothing.
        team: the processes that share the work.
        wait: is called by the leading process if another evaluation has the parts, whose end is then waited for; None
            refuses.
    """
    if record is None:
        yield Parts(None, team)
        return
    file = record.with_name(record.name + ".parts.jsonl")
    with contextlib.ExitStack() as stack:
        team.by_one(lambda: stack.enter_context(_claimed(file, record, wait)))
        yield Parts(file, team)


@contextlib.contextmanager
def _claimed(file: Path, record: Path, wait: Callable[[], None] | None) -> Iterator[None]:
    """The file, made if need be; an empty one is not left behind."""
    with folders_for(file.parent), contextlib.closing(Lock(record.with_name(record.name + LOCK))) as lock:
        if not lock.take_if_free():
            if wait is None:
                raise SelattnError(
                    f"another process is measuring for {record}: wait for it, or choose another --record"
                )
            wait()
            while not lock.take_if_free():
                time.sleep(_SECONDS)
        with writing(file):
            file.touch()
        try:
            drop_half_a_line(file)
            yield
        finally:
            if file.exists():  # it is removed when the record is written
                drop_half_a_line(file)  # of a disk that was full
                if not file.stat().st_size:
                    file.unlink()


def _read(file: Path) -> Iterator[tuple[str, Any]]:
    """Names and values, but for lines that are damaged: what stood there is measured anew."""
    for line in whole_lines(file):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            part = json.loads(line)
            yield _name(part["key"]), part["value"]


def _name(key: Key) -> str:
    return json.dumps(key, sort_keys=True)
