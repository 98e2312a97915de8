"""A run that is interrupted and resumed, in whatever way, is the run that was not."""

import json
import random
import signal
import time

import pytest

from selattn.errors import SelattnError
from selattn.training import folder, train
from selattn.training.trainer import SelectiveTrainer
from tests.interrupted import Interrupt
from tests.training.killed import FORK, go
from tests.training.tiny import log, same_run, tiny


def begun(path):
    """A folder in which the tiny run has begun; its lock."""
    lock = folder.lock_of(path)
    folder.begin(path, tiny().to_dict(), folder.Plan(), lock)
    return lock


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "whole"
    finished = train(tiny(), path)
    assert finished.step == 12
    assert not finished.interrupted
    return path


def test_the_log_has_every_record(uninterrupted):
    steps = [(record["step"], "evaluation" in record) for record in log(uninterrupted)]
    training = [(step, False) for step in (3, 6, 9, 12)]
    assert steps == sorted([*training, (5, True), (10, True), (12, True)])


@pytest.mark.parametrize("at", [1, 5, 8, 11])
def test_ctrl_c_leaves_a_checkpoint_and_resuming_ends_in_the_same_place(uninterrupted, tmp_path, at):
    """Also between two records of the log, whose sums the checkpoint then has to hold."""
    path = tmp_path / "run"
    finished = train(tiny(), path, progress=Interrupt(at + 1))
    assert finished.interrupted
    assert finished.step == folder.newest(path) == at
    assert not folder.finished(path)
    assert not train(tiny(), path, resume=True).interrupted
    same_run(uninterrupted, path)


def test_ctrl_c_is_whose_it_was_afterwards(tmp_path):
    def ours(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, ours)
    try:
        train(tiny(), tmp_path / "run", progress=Interrupt(3))
        assert signal.getsignal(signal.SIGINT) is ours
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_was_logged_after_the_checkpoint_is_cut_off(uninterrupted, tmp_path):
    """A kill between a record and the next checkpoint, and in the middle of writing a record."""
    path = tmp_path / "run"
    train(tiny(), path, progress=Interrupt(9))
    with (path / folder.LOG).open("a") as file:
        file.write('{"step": 9, "loss": 1.0}\n{"step": 10, "lo')
    train(tiny(), path, resume=True)
    same_run(uninterrupted, path)


def test_the_first_thing_to_go_of_a_checkpoint_is_its_seal(tmp_path, monkeypatch):
    checkpoint = tmp_path / "checkpoint-1"
    checkpoint.mkdir()
    (checkpoint / "a").write_text("a")
    folder.seal(checkpoint)
    assert folder.damage(checkpoint) is None

    def killed(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(folder.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.delete(checkpoint)
    assert folder.damage(checkpoint) == "whole.json is damaged"


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(uninterrupted, tmp_path):
    path = tmp_path / "run"
    begun(path).close()
    (path / folder.LOG).write_text('{"step": 3, "loss": 9.0}\n')
    train(tiny(), path, resume=True)
    same_run(uninterrupted, path)


def test_a_run_that_was_killed_before_its_export_only_exports(uninterrupted, tmp_path, monkeypatch):
    path = tmp_path / "run"
    train(tiny(), path)
    folder.shutil.rmtree(path / folder.MODEL)
    monkeypatch.setattr(SelectiveTrainer, "training_step", None)
    train(tiny(), path, resume=True)
    same_run(uninterrupted, path)


def test_a_folder_with_a_run_is_not_overwritten_by_accident(uninterrupted):
    with pytest.raises(SelattnError, match="continue it with --resume, or start over with --overwrite"):
        train(tiny(), uninterrupted)


@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}])
def test_two_processes_do_not_train_in_one_folder(tmp_path, how):
    """And the second one is told so, whatever it was asked to do; not to resume, which it could not."""
    path = tmp_path / "run"
    lock = begun(path)
    with pytest.raises(SelattnError, match="another process is training in"):
        train(tiny(), path, **how)
    assert {file.name for file in path.iterdir()} == {folder.CONFIG, ".lock"}
    lock.close()
    if how:
        assert train(tiny(), path, **how).step == 12


def test_two_processes_that_begin_at_once_do_not_overwrite_each_other(tmp_path):
    """The second one looked when there was no folder yet, and comes when the first has ended."""
    path = tmp_path / "run"
    plan, lock = folder.check(path, {}, {}, resume=True, overwrite=False), folder.lock_of(path)
    train(tiny(), path)
    with pytest.raises(SelattnError, match="another process has begun a run in"):
        folder.begin(path, {}, plan, lock)
    lock.close()
    assert folder.finished(path)


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(SelattnError, match="is not empty and has no run in it"):
            train(tiny(), tmp_path, overwrite=overwrite)
    assert (tmp_path / "thesis.tex").exists()


def test_a_resumed_run_has_to_be_the_same_run(uninterrupted):
    with pytest.raises(SelattnError, match=r"seed is 0 there and 1 here"):
        train(tiny(seed=1), uninterrupted, resume=True)


def test_overwrite_starts_over(uninterrupted, tmp_path):
    path = tmp_path / "run"
    train(tiny(seed=1), path)
    train(tiny(), path, overwrite=True)
    same_run(uninterrupted, path)


def test_what_a_checkpoint_loads_needs_no_code(uninterrupted):
    """Everything but the Trainer's own note of its arguments, which nothing reads, loads with weights_only=True."""
    import numpy as np
    import torch

    safe = [np._core.multiarray._reconstruct, np.ndarray, np.dtype, type(np.dtype(np.uint32))]
    with torch.serialization.safe_globals(safe):
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
            torch.load(uninterrupted / "checkpoint-12" / name, weights_only=True)


def killed_again_and_again(path, kills, steps, draw):
    """Start the run until it ends by itself, and kill it at random moments before that; how often that was."""
    done = 0
    while True:
        before = len(folder.read_log(path / folder.LOG))
        process = FORK.Process(target=go, args=(path, steps))
        process.start()
        if done < kills:
            # By what the run has done, not by the clock: on a fast machine it would have ended by then.
            more = draw.randint(1, 12)
            while process.is_alive() and len(folder.read_log(path / folder.LOG)) < before + more:
                time.sleep(0.002)
            time.sleep(draw.uniform(0, 0.03))
            process.kill()
        process.join()
        if process.exitcode == 0:
            return done
        assert process.exitcode == -signal.SIGKILL
        done += 1


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_and_resumed_is_uninterrupted(tmp_path, kills):
    steps = 25 * kills
    process = FORK.Process(target=go, args=(tmp_path / "whole", steps))
    process.start()
    process.join()
    assert killed_again_and_again(tmp_path / "killed", kills, steps, random.Random(0)) == kills
    same_run(tmp_path / "whole", tmp_path / "killed")
    record = json.loads((tmp_path / "killed" / "model" / "training_record.json").read_text())
    assert record["steps"] == steps
    assert record["tokens"] == steps * 8 * 9
