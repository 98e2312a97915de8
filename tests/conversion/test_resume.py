"""A conversion that is interrupted and resumed, in whatever way, ends with the model of one that was not."""

import random
import shutil
import time

import pytest

from selattn.cli.main import main
from selattn.errors import SelattnError
from selattn.models.loading import load
from selattn.pruning import Until
from selattn.training import folder
from selattn.utils.progress import Progress
from tests.conversion.killed import resumed
from tests.conversion.tiny import CONTEXT, SHORT, go, llama_folder, text_of
from tests.interrupted import Interrupt
from tests.training.killed import FORK
from tests.training.tiny import same_run


@pytest.mark.parametrize("at", [2, 6])
def test_interrupted_and_resumed_is_uninterrupted(world, tmp_path, at):
    """While only the form learns, and after that; between two records of the log."""
    found = go(world, tmp_path / "run", progress=Interrupt(at))
    assert found.interrupted
    assert found.step == at - 1
    assert not go(world, tmp_path / "run", resume=True).interrupted
    same_run(world / "whole", tmp_path / "run")


@pytest.mark.slow
def test_killed_and_resumed_is_uninterrupted(world, tmp_path):
    """At any moment: while steps are taken, checkpoints written, or the model."""
    draw, kills = random.Random(0), 0
    while kills < 6:
        process = FORK.Process(target=resumed, args=(world, tmp_path / "run"))
        process.start()
        before = len(folder.read_log(tmp_path / "run" / folder.LOG))
        more = draw.randint(0, 2)
        while process.is_alive() and len(folder.read_log(tmp_path / "run" / folder.LOG)) < before + more:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.2))
        process.kill()
        process.join()
        kills += 1
    go(world, tmp_path / "run", resume=True)
    same_run(world / "whole", tmp_path / "run")


@pytest.mark.parametrize("where", ["search", "record", "config"])
def test_interrupted_after_the_training(world, tmp_path, monkeypatch, where):
    """In the search, before the losses are written, and before the budgets are in the config."""
    how = {"prune": Until(factor=2), "search_rows": 8, "resume": True}
    for name in ("whole", "run"):
        shutil.copytree(world / "whole", tmp_path / name)
    want = go(world, tmp_path / "whole", **how)

    def stop(*args):
        raise KeyboardInterrupt

    def stop_at_budgets(folder, changes):
        if changes["cache_budgets"]:
            stop()

    class Stop(Progress):
        def advance(self, by=1, text=None):
            stop()  # the training has ended, so only the search advances

    how_stopped = {**how, "progress": Stop()} if where == "search" else how
    with monkeypatch.context() as patch:
        if where == "record":
            patch.setattr("selattn.conversion.run.write_record", stop)
        if where == "config":
            patch.setattr("selattn.conversion.run.change_config", stop_at_budgets)
        with pytest.raises(KeyboardInterrupt):
            go(world, tmp_path / "run", **how_stopped)
    assert load(tmp_path / "run").description.budgets is None
    assert go(world, tmp_path / "run", **how).record == want.record
    config = [(tmp_path / name / "model" / "config.json").read_bytes() for name in ("whole", "run")]
    assert config[0] == config[1]
    assert load(tmp_path / "run").description.budgets.to_json() == list(want.record.budgeted.budgets)


def test_another_original_is_not_resumed_with(world, tmp_path):
    """The teacher is read again: it has to be what it was."""
    shutil.copytree(world / "llama", tmp_path / "llama")
    shutil.copy(world / "text.txt", tmp_path / "text.txt")
    assert go(tmp_path, "run", progress=Interrupt(4)).interrupted
    llama_folder(tmp_path / "llama", seed=3)
    with pytest.raises(SelattnError, match=r"has another run in it: conversion\.original is"):
        go(tmp_path, "run", resume=True)


def test_the_command(world, tmp_path, capsys):
    """What it shows, and that it goes on only if it is told to."""
    data = text_of(world)
    command = ["convert", str(world / "llama"), "--data", data.source, "--validation", "0.5", "--context", str(CONTEXT)]
    command += ["--out", str(tmp_path / "run"), *SHORT]
    assert main(command) == 0
    same_run(world / "whole", tmp_path / "run")
    out = capsys.readouterr().out
    for words in ("the original", "untrained, at full strength", "after", "kept by layer"):
        assert words in out
    assert main(command) == 2
    assert "continue it with --resume, or start over with --overwrite" in capsys.readouterr().err
    assert main([*command, "--resume"]) == 0
    assert capsys.readouterr().out == out
