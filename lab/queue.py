"""Work through a list of tables, most wanted first: `python -m lab queue FILE`. The same command resumes it.

A line of the file has the hours that a table is expected to take and what `python -m lab` is given for it, or
`python -m tools.records`, such as --extend; `with` gives options to the lines below. `lab/queue.txt` is such a file:

    with --scale laptop --source data/mixture --set machine.precision=bf16
    4.5 texts --seeds 0,1,2

A line is divided into jobs: a training for each model that the store lacks, then the measurement, which writes the
record. Jobs are processes with one thread and low priority, so many at a time, in the order of the file; a training
that several lines need is one job, and one measurement runs at a time. A line is done when its record is in --out.
Ctrl-C and SIGTERM are passed on, and trainings end with a checkpoint. A job that fails does not stop the others; the
next start tries it again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from lab.engine.experiment import Need
from lab.engine.records import Reproduction, same_settings
from lab.engine.run import all_needs, check_settings, choose, known_seeds, lacking, with_reading
from lab.engine.store import Store
from lab.scales import find_scale
from selattn.cli import _options
from selattn.cli.main import INTERRUPTED
from selattn.errors import SelattnError
from selattn.utils.files import Lock, folders_for, write_json
from selattn.utils.records import read_body
from tools.records import check_positions, extended_store, make_parser

FILE = Path(__file__).with_name("queue.txt")
STATE, LOGS = "queue.json", "queue"  # in the store: what has failed and how long jobs took, and what they have said
_PAUSE = 0.2  # seconds between two looks at the jobs


@dataclass(frozen=True)
class Line:
    """A table that is wanted.

    Attributes:
        text: as it stands in the file.
        hours: expected.
        words: what `python -m tools.records` is given, which takes all that `python -m lab` does.
        needs: its trainings by name, those that they begin with included.
        records: the files that it writes.
        done: whether these are there, of the same text, seeds and settings.
        store: where its models are; with --extend it also knows what the records tell of.
    """

    text: str
    hours: float
    words: tuple[str, ...]
    needs: dict[str, Need]
    records: tuple[Path, ...]
    done: bool
    store: Store


@dataclass(frozen=True)
class Job:
    """A process.

    Attributes:
        name: for the table and the log: the key of a training, or the line that is measured.
        words: after `python -m`.
        after: the names of jobs that must have ended well.
        measures: whether it measures; the store lets one do so at a time.
    """

    name: str
    words: tuple[str, ...]
    after: frozenset[str] = frozenset()
    measures: bool = False


@dataclass
class State:
    """What a queue remembers, in a file of the store.

    Attributes:
        seconds: that each job has run, in all sessions.
        failed: what was said last by each job that failed in the latest session.
        running: the processes.
        driver: the process that started them.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    driver: int = 0

    @classmethod
    def read(cls, store: Path) -> State:
        """Of a store; processes of a driver that is gone are not running."""
        file = store / STATE
        found = cls(**json.loads(file.read_bytes())) if file.is_file() else cls()
        try:
            os.kill(found.driver, 0)  # which asks whether it is there, and does nothing
        except OSError:
            found.running = {}
        return found


def read_lines(file: Path) -> list[Line]:
    """The lines of a queue file."""
    try:
        texts = file.read_text().splitlines()
    except OSError as error:
        raise SelattnError(f"cannot read the queue {file}: {error.strerror}") from None
    found: list[Line] = []
    options: list[str] = []
    for number, text in enumerate(texts, 1):
        first, *words = shlex.split(text, comments=True) or [""]
        if first == "with":
            options = words
        elif first:
            try:
                found.append(_line(text.partition("#")[0].strip(), float(first), [*words, *options]))
            except (SelattnError, ValueError) as error:
                raise SelattnError(f"{file}, line {number}: {error}; a line is 'HOURS NAME ... OPTIONS'") from None
    return found


def _line(text: str, hours: float, words: Sequence[str]) -> Line:
    args = make_parser().parse_args(words)
    size = find_scale(args.scale, args.source, dict(args.text), args.positions)
    chosen = choose(args.names, size)
    check_positions(chosen, size, args.positions)
    store = extended_store(chosen, args.store, args.out / size.name) if args.extend else Store(args.store)
    check_settings(args.set, chosen, size)
    size = with_reading(size, args.set)
    seeds = tuple(size.seeds if args.seeds is None else args.seeds)
    known = known_seeds(chosen, size, args.out, args.set) if args.extend else {}
    records = tuple(args.out / size.name / f"{each.name}.json" for each in chosen)
    wanted = same_settings({"source": size.data.source, "set": list(args.set), "positions": list(size.tried)})
    done = all(_holds(record, seeds, wanted) for record in records)
    todo = {each.name: seeds if done else lacking(seeds, known.get(each.name)) for each in chosen}
    needs = all_needs(chosen, size, todo, args.set)
    return Line(text, hours, tuple(words), needs, records, done, store)


def _holds(file: Path, seeds: Sequence[int], wanted: dict[str, Any]) -> bool:
    """Whether a record is there that has these seeds, made with the same text and settings."""
    if not file.is_file():
        return False
    record = read_body(file, Reproduction)
    settings = same_settings(record.settings)
    return set(seeds) <= set(record.seeds) and all(settings.get(name) == value for name, value in wanted.items())


def jobs_of(lines: Sequence[Line], file: Path) -> list[Job]:
    """What is left to do, in order: the trainings of each line that the store lacks, then its measurement."""
    found: dict[str, Job] = {}
    for line in lines:
        if line.done:
            continue
        missing = set()
        for need in line.needs.values():
            if line.store.find(need) is None:
                before = frozenset() if need.after is None or need.after.key not in found else {need.after.key}
                words = ("lab", "queue", str(file), "--train", need.key)
                found.setdefault(need.key, Job(need.key, words, frozenset(before)))
                missing.add(need.key)
        found.setdefault(line.text, Job(line.text, ("tools.records", *line.words), frozenset(missing), measures=True))
    return list(found.values())


class Queue:
    """Jobs, some at a time.

    Args:
        jobs: in their order.
        folder: for the state and the logs.
        workers: how many run at a time.
        level: of niceness.
        say: is told what begins and ends.
        command: of a job.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        folder: Path,
        workers: int = 2,
        level: int = 19,
        say: Callable[[str], None] = lambda text: None,
        command: Callable[[Job], list[str]] = lambda job: [sys.executable, "-m", *job.words],
    ) -> None:
        self._waiting, self._folder, self._workers, self._level = list(jobs), folder, workers, level
        self._say, self._command = say, command
        self._jobs = {job.name: job for job in jobs}
        self._ended: set[str] = set()
        self._processes: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
        self._stopping = False
        self.state = State.read(folder)
        self.state.failed, self.state.running, self.state.driver = {}, {}, os.getpid()

    def run(self) -> int:
        """Work until nothing is left that can be done: 0, 1 if a job has failed, 130 if it was interrupted."""
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while self._processes or (not self._stopping and self._next() is not None):
                while not self._stopping and len(self._processes) < self._workers and (job := self._next()):
                    self._start(job)
                time.sleep(_PAUSE)
                for name in [name for name, (process, _) in self._processes.items() if process.poll() is not None]:
                    self._end(name)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return INTERRUPTED if self._stopping else int(bool(self.state.failed))

    def _next(self) -> Job | None:
        """The first that can begin; what waits for one that failed has failed, too."""
        for job in [job for job in self._waiting if job.after & set(self.state.failed)]:
            self._waiting.remove(job)
            self.state.failed[job.name] = "a training that it needs has failed"
            self._write()
        measuring = any(self._jobs[name].measures for name in self._processes)
        ready = (job for job in self._waiting if job.after <= self._ended and not (job.measures and measuring))
        return next(ready, None)

    def _start(self, job: Job) -> None:
        log = self._log(job.name)
        with folders_for(log.parent), log.open("wb") as out:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(  # of a session of its own: a terminal's Ctrl-C would reach it twice
                self._command(job), stdout=out, stderr=out, env=environment, start_new_session=True
            )
        _be_nice(process.pid, self._level)
        self._waiting.remove(job)
        self._processes[job.name] = (process, time.monotonic())
        self.state.running[job.name] = process.pid
        self._write()
        self._say(f"begins: {job.name}")

    def _end(self, name: str) -> None:
        process, begun = self._processes.pop(name)
        self.state.seconds[name] = self.state.seconds.get(name, 0.0) + time.monotonic() - begun
        del self.state.running[name]
        if process.returncode == 0:
            self._ended.add(name)
            self._say(f"done: {name}")
        elif not self._stopping:
            lines = self._log(name).read_text(errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "nothing was said")
            self.state.failed[name] = f"exit code {process.returncode}: {last}"
            self._say(f"failed: {name}: {self.state.failed[name]}")
        self._write()

    def _stop(self, number: int, frame: object) -> None:
        self._stopping = True
        for process, _ in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)

    def _log(self, name: str) -> Path:
        return self._folder / LOGS / ("".join(c if c.isalnum() else "-" for c in name)[:100] + ".log")

    def _write(self) -> None:
        write_json(self._folder / STATE, vars(self.state))


def _be_nice(pid: int, level: int) -> None:
    """Lower the priority of a process that leads a session.

    Linux may schedule each session as a group (autogroup): niceness counts only within it unless the group has it, too.
    """
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, level)
    with contextlib.suppress(OSError):  # another system, or the process has ended
        Path(f"/proc/{pid}/autogroup").write_text(str(level))


def status(lines: Sequence[Line]) -> Iterator[tuple[str, str, str, str, str]]:
    """For each line: how it stands, trainings in its store and records, hours expected and used, and its text."""
    for line in lines:
        state = State.read(line.store.folder)
        trained = [found for need in line.needs.values() if (found := line.store.find(need)) is not None]
        names = {line.text, *(need.key for need in line.needs.values())}
        failed = [state.failed[name] for name in sorted(names & set(state.failed))]
        used = state.seconds.get(line.text, 0.0) + sum(each.record.seconds for each in trained if each.record)
        running = " ".join(str(state.running[name]) for name in sorted(names & set(state.running)))
        how = "done" if line.done else f"running {running}" if running else "waiting"
        if failed and not line.done:
            how = f"failed: {failed[0]}"
        yield how, f"{len(trained)}/{len(line.needs)}", f"{line.hours:g}", f"{used / 3600:.1f}", line.text


def show(lines: Sequence[Line], console: Console) -> None:
    """The table of `--status`."""
    table = Table("state", "trained", "hours expected", "used", "line", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in status(lines):
        table.add_row(*row)
    console.print(table)


def main(argv: Sequence[str]) -> int:
    """Run the queue, or show how it stands."""
    parser = argparse.ArgumentParser(
        prog="python -m lab queue", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=_options.path, nargs="?", default=FILE, help=f"default: {FILE.name} of the lab")
    parser.add_argument("--status", action="store_true", help="show what is done, running and waiting, and its hours")
    parser.add_argument("--workers", type=_options.whole(1), default=2, metavar="N", help="jobs at a time (default: 2)")
    parser.add_argument("--nice", type=_options.whole(0, 19), default=19, help="priority of the jobs (default: 19)")
    parser.add_argument("--train", metavar="KEY", help=argparse.SUPPRESS)  # what a job is
    args = parser.parse_args(argv)
    console, lines = Console(highlight=False, soft_wrap=True), read_lines(args.file)
    if args.status:
        show(lines, console)
        return 0
    if args.train is not None:
        return _train(lines, args.train)
    stores = {line.store.folder for line in lines}
    if len(stores) != 1:
        raise SelattnError(f"the lines of {args.file} need one store between them, not {len(stores)}: see --store")
    (store,) = stores
    with folders_for(store), contextlib.closing(Lock(store / "queue.lock")) as lock:
        lock.take(f"a queue is at work with the models of {store}: see --status")
        queue = Queue(jobs_of(lines, args.file), store, args.workers, args.nice, console.print)
        return queue.run()


def _train(lines: Sequence[Line], key: str) -> int:
    """The training of that key, begun or resumed."""
    for line in lines:
        for need in line.needs.values():
            if need.key == key:
                return INTERRUPTED if line.store.train(need) is None else 0
    raise SelattnError(f"no line of the queue needs the training {key}")
