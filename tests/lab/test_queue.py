"""The queue: order, failing jobs, one job for each training, and what a kill leaves to the next start."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lab.__main__ import main as lab
from lab.engine.run import reproduce
from lab.engine.store import Store
from lab.queue import Job, Queue, State, jobs_of, read_lines, status
from selattn.cli.main import BAD_INPUT, INTERRUPTED
from tests.lab.tiny import TINY, only

OPTIONS = "with --scale smoke --store {folder}/store --out {folder}/out\n"


@pytest.fixture
def lines(tmp_path):
    """A function that makes lines of a queue file with these texts."""

    def make(*texts):
        file = tmp_path / "queue.txt"
        file.write_text(OPTIONS.format(folder=tmp_path) + "\n".join(texts) + "\n")
        return file, read_lines(file)

    return make


def writes(folder, name, code=0, waits=0.0):
    """A job's command: begins and ends in a common log, and ends with this code."""
    say = f"print({{!r}}, file=open({str(folder / 'said')!r}, 'a'))"
    return [
        sys.executable,
        "-c",
        f"import sys, time; {say.format('begins ' + name)}; time.sleep({waits}); {say.format('ends ' + name)}; "
        f"print('the end of', {name!r}); sys.exit({code})",
    ]


def run(jobs, folder, workers=1, codes=None, waits=0.0):
    """Exit code, state, and what the jobs have said in turn."""
    queue = Queue(
        jobs, folder, workers, 0, command=lambda job: writes(folder, job.name, (codes or {}).get(job.name, 0), waits)
    )
    code = queue.run()
    said = (folder / "said").read_text().splitlines() if (folder / "said").exists() else []
    return code, State.read(folder), said


def test_a_line_is_its_missing_trainings_and_then_the_measurement(lines):
    file, found = lines("1.5 course", "2 persisted --seeds 0,1  # shares seed 0")
    assert [line.hours for line in found] == [1.5, 2.0]
    assert not any(line.done for line in found)
    jobs = jobs_of(found, file)
    measured = [job.name for job in jobs if job.measures]
    assert measured == ["1.5 course", "2 persisted --seeds 0,1"]
    trainings = [job.name for job in jobs if not job.measures]
    assert len(trainings) == len(set(trainings)) == len({need.key for line in found for need in line.needs.values()})
    assert [job.measures for job in jobs].index(True) == len(found[0].needs)
    assert all(
        job.after == {need.key for need in line.needs.values()}
        for job, line in zip((j for j in jobs if j.measures), found, strict=True)
    )


def test_a_training_that_begins_with_another_waits_for_it(lines):
    file, found = lines("1 memory-late")
    jobs = {job.name: job for job in jobs_of(found, file)}
    later = [need for need in found[0].needs.values() if need.after is not None]
    assert later
    assert all(jobs[need.key].after == {need.after.key} for need in later)


def test_an_extended_line_takes_its_losses_from_the_records(lines, tmp_path, monkeypatch):
    only(monkeypatch, dataclasses.replace(TINY, losses_only=True))
    reproduce("tiny", seeds=(0,), store=tmp_path / "elsewhere", out=tmp_path / "out")
    file, found = lines("1 tiny --seeds 0,1 --extend", "1 tiny --seeds 0,1", "1 tiny --seeds 0")
    assert [line.done for line in found] == [False, False, True]
    extended, whole = ([job.words for job in jobs_of(found[n : n + 1], file)] for n in (0, 1))
    assert (len(extended), len(whole)) == (3, 5)  # two trainings and the measurement; the store has none of the four
    assert extended[-1] == ("tools.records", *found[0].words)
    assert [row[1] for row in status(found[:2])] == ["2/4", "0/4"]


def test_jobs_run_in_order_and_a_failing_one_stops_only_those_that_need_it(tmp_path):
    jobs = [
        Job("a", ()), Job("b", ()), Job("c", (), frozenset({"b"})), Job("d", (), frozenset({"a"}), measures=True),
        Job("e", (), frozenset({"c"}), measures=True),
    ]  # fmt: skip
    code, state, said = run(jobs, tmp_path, codes={"b": 3})
    assert code == 1
    assert said == ["begins a", "ends a", "begins b", "ends b", "begins d", "ends d"]
    assert state.failed["b"] == "exit code 3: the end of b"
    assert set(state.failed) == {"b", "c", "e"}
    assert set(state.seconds) == {"a", "b", "d"}
    assert run(jobs[1:2], tmp_path)[:2][0] == 0  # the next start tries it again
    assert State.read(tmp_path).failed == {}


def test_two_workers_do_each_job_once_and_measure_one_at_a_time(tmp_path):
    jobs = [Job(str(n), ()) for n in range(4)] + [Job(f"m{n}", (), measures=True) for n in range(3)]
    code, state, said = run(jobs, tmp_path, workers=2, waits=0.4)
    assert code == 0
    assert sorted(said) == sorted(f"{what} {job.name}" for job in jobs for what in ("begins", "ends"))
    at_once = measuring = most = most_measuring = 0
    for line in said:
        step = 1 if line.startswith("begins") else -1
        at_once += step
        measuring += step if line.split()[1].startswith("m") else 0
        most, most_measuring = max(most, at_once), max(most_measuring, measuring)
    assert (most, most_measuring) == (2, 1)
    assert set(state.seconds) == {job.name for job in jobs}


def test_a_signal_is_passed_on_and_nothing_new_begins(tmp_path):
    patient = (
        "import signal, sys, time; signal.signal(signal.SIGINT, lambda *a: (open('{0}', 'a').write('checkpoint'), "
        "sys.exit(130))); open('{0}.ready', 'w'); time.sleep(60)"
    ).format(tmp_path / "left")
    queue = Queue([Job("a", ()), Job("b", ())], tmp_path, 1, 0, command=lambda job: [sys.executable, "-c", patient])

    def press():
        while not (tmp_path / "left.ready").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=press).start()
    assert queue.run() == INTERRUPTED
    assert (tmp_path / "left").read_text() == "checkpoint"
    state = State.read(tmp_path)
    assert (state.failed, state.running, set(state.seconds)) == ({}, {}, {"a"})


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="sessions are no groups here")
def test_niceness_counts_among_sessions(tmp_path):
    said = tmp_path / "said"
    command = ["sh", "-c", f"sleep 0.5; cat /proc/self/autogroup > {said}; nice >> {said}"]
    Queue([Job("a", ())], tmp_path, 1, 7, command=lambda job: command).run()
    group, own = said.read_text().splitlines()
    assert (group.partition(" nice ")[2], own) == ("7", "7")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("course", "line 2: could not convert string to float: 'course'; a line is 'HOURS NAME"),
        ("1 nothing-of-that-name", "line 2: unknown experiment"),
        ("1 course --set seed=3", "line 2: seed=... is set by --seeds"),
    ],
)
def test_a_line_that_is_none_is_refused(lines, capsys, tmp_path, text, message):
    (tmp_path / "queue.txt").write_text(OPTIONS.format(folder=tmp_path) + text + "\n")
    assert lab(["queue", str(tmp_path / "queue.txt")]) == BAD_INPUT
    assert message in capsys.readouterr().err


def test_the_queue_of_the_lab_can_be_read():
    found = read_lines(Path("lab/queue.txt"))
    assert found
    assert len({line.text for line in found}) == len(found)
    assert all(line.hours > 0 for line in found)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_and_resumed_it_ends_with_records_and_trains_nothing_twice(lines, tmp_path):
    file, found = lines("0.1 course", "0.1 persisted")
    command = [sys.executable, "-m", "lab", "queue", str(file), "--nice", "0"]
    process = subprocess.Popen(command)
    trained = lambda: [need for need in found[0].needs.values() if Store(tmp_path / "store").find(need)]  # noqa: E731
    while not trained():
        assert process.poll() is None
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait() == INTERRUPTED
    first = {need.key: (Store(tmp_path / "store").find(need).folder / "model").stat().st_mtime_ns for need in trained()}
    assert subprocess.run(command).returncode == 0
    assert all((Store(tmp_path / "store").place(key) / "model").stat().st_mtime_ns == at for key, at in first.items())
    _, found = lines("0.1 course", "0.1 persisted")
    assert [line.done for line in found] == [True, True]
    assert [row[0] for row in status(found)] == ["done", "done"]
    assert jobs_of(found, file) == []
    assert subprocess.run(command).returncode == 0
