"""Files of JSON lines that are only ever appended to: a process that is killed loses no line that it has written.

`Parts` are the results of an evaluation, in such a file beside the record until that is written. A part is a number, or
a few, that take a while: a loss, a task, a point of a curve. Its key is everything that it depends on. A part is on the
disk before the next one is measured, so an evaluation can be interrupted at any time, and the same command resumes it.
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
_SECONDS = 0.5  # between two tries for the lock
_T = TypeVar("_T")


def append_line(file: Path, value: Any, advice: str = "", durable: bool = True) -> None:
    """Add a line, which is on the disk when this returns; unless `durable`, the system writes it when it likes."""
    with writing(file, advice), file.open("a") as opened:
        opened.write(json.dumps(value) + "\n")
        opened.flush()
        if durable:
            os.fsync(opened.fileno())


def whole_lines(file: Path) -> list[bytes]:
    """The lines of a file, without a last one that is incomplete."""
    return file.read_bytes().split(b"\n")[:-1]


def drop_half_a_line(file: Path) -> None:
    """Cut off the incomplete line of a process that was killed, so that the next one begins a line."""
    os.truncate(file, file.read_bytes().rfind(b"\n") + 1)


class Parts:
    """Measures what has not been measured. The leading process reads the file, and tells the others what it has.

    Parts with the same key are several measurements, as when one model is named twice: each is used once.
    """

    def __init__(self, file: Path | None, team: Team, record: Path | None = None) -> None:
        """Without a file nothing is kept."""
        self._file, self._team, self._record = file, team, record
        # A record names one machine and one set of versions: numbers of others do not belong in it.
        self._around = {"versions": versions(), "machine": machine()}
        self._known: dict[str, list[Any]] = {}
        if file is not None and team.leads:
            for name, value in _read(file):
                self._known.setdefault(name, []).append(value)

    def known(self, keys: Iterable[Key]) -> int:
        """How many of these were measured before; asked by the leading process."""
        counts = Counter(_name({**key, **self._around}) for key in keys)
        return sum(min(count, len(self._known.get(name, []))) for name, count in counts.items())

    def get(self, key: Key, kind: type[_T], measure: Callable[[], _T], alone: bool = False) -> _T:
        """A value of type `kind` (see `selattn.utils.typed`) that was measured before, or else is measured now.

        All processes call this together: some of them measuring while others do not would wait for each other forever.
        So the leading one decides, whatever key the others have. With `alone` only the leading process calls.
        """
        whole = {**key, **self._around}
        past = self._take(whole, kind) if alone else self._team.by_one(lambda: self._take(whole, kind))
        if past:
            return past[0]
        value = measure()
        if self._file is not None and self._team.leads:
            append_line(self._file, {"key": whole, "value": to_json(value)}, "what it holds is kept")
        return value

    def write(self, body: object, seed: int) -> None:
        """Write the record, and remove the parts; if it cannot be written, they are kept."""
        if self._record is None or not self._team.leads:
            return
        try:
            write_record(self._record, body, seed)
        except SelattnError as error:
            raise SelattnError(f"{error}; what was measured is kept beside it: run the same command again") from None
        self.remove()

    def remove(self) -> None:
        """Remove the file."""
        if self._file is not None and self._team.leads:
            self._file.unlink()

    def _take(self, key: Key, kind: type[_T]) -> list[_T]:
        """A list of one, or empty; a value of another kind is measured again."""
        there = self._known.get(_name(key), [])
        while there:
            with contextlib.suppress(MissingError, KindError):
                return [from_json(kind, there.pop(0))]
        return []


@contextlib.contextmanager
def parts_of(record: str | Path | None, keys: Sequence[Key], team: Team, progress: Progress) -> Iterator[Parts]:
    """The parts of an evaluation with these keys; `progress` says how many of them are known."""
    with open_parts(None if record is None else Path(record), team) as parts:
        known = parts.known(keys)
        if known:
            progress.say(f"{known} of {len(keys)} parts were measured before")
        yield parts


@contextlib.contextmanager
def open_parts(record: Path | None, team: Team, wait: Callable[[], None] | None = None) -> Iterator[Parts]:
    """The parts that belong to a record, for one evaluation at a time; without a record nothing is kept.

    If another evaluation has the parts, the leading process calls `wait` and waits for its end; None refuses.
    """
    if record is None:
        yield Parts(None, team)
        return
    file = record.with_name(record.name + ".parts.jsonl")
    with contextlib.ExitStack() as stack:
        team.by_one(lambda: stack.enter_context(_claimed(file, record, wait)))
        yield Parts(file, team, record)


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
                drop_half_a_line(file)  # after the disk was full
                if not file.stat().st_size:
                    file.unlink()


def _read(file: Path) -> Iterator[tuple[str, Any]]:
    """Names and values, without damaged lines: their parts are measured again."""
    for line in whole_lines(file):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            part = json.loads(line)
            yield _name(part["key"]), part["value"]


def _name(key: Key) -> str:
    return json.dumps(key, sort_keys=True)
