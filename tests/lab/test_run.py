"""From a name to a record, a table and a list: one experiment end to end, interrupted and not."""

import contextlib
import dataclasses
import json
import threading

import pytest

from lab.__main__ import main as lab
from lab.engine import run
from lab.engine.progress import Overview
from lab.engine.records import Reproduction
from selattn.cli.main import INTERRUPTED
from selattn.utils.files import LOCK, Lock
from selattn.utils.records import read_body
from tests.interrupted import Interrupt
from tests.lab.tiny import TINY, only


@pytest.mark.usefixtures("only_tiny")
def test_an_experiment_end_to_end(tmp_path, capsys, monkeypatch):
    words = ["tiny", "--seeds", "0,1", "--store", str(tmp_path / "store"), "--out", str(tmp_path / "out")]
    assert lab(words) == 0
    said = capsys.readouterr()
    assert "| loss |" in said.out
    assert "run 1 of 4" in said.err
    record = read_body(tmp_path / "out/smoke/tiny.json", Reproduction)
    assert record.seeds == (0, 1)
    assert [model.name for model in record.models] == [
        f"{kind}, seed {s}" for s in (0, 1) for kind in ("standard", "selective")
    ]
    assert record.cell("loss", "selective").values == tuple(
        m.evaluation["validation"]["loss"] for m in record.models[1::2]
    )
    whole = json.loads((tmp_path / "out/smoke/tiny.json").read_text())
    assert whole["seed"] == [0, 1]
    assert {"commit", "versions", "machine", "command"} <= set(whole)
    assert "2.5" in (tmp_path / "out/smoke/tiny.tex").read_text()
    monkeypatch.setattr("lab.engine.store.train", lambda *args, **kwargs: pytest.fail("trained again"))
    assert lab([*words[:2], "1,0", *words[3:]]) == 0
    assert lab(["list", "--out", str(tmp_path / "out")]) == 0
    assert "smoke" in capsys.readouterr().out.splitlines()[-3]


@pytest.mark.usefixtures("only_tiny")
def test_ctrl_c_ends_with_a_checkpoint_and_the_same_command_resumes(tmp_path, capsys, monkeypatch):
    words = ["tiny", "--store", str(tmp_path / "store"), "--out", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr("lab.engine.progress.Overview.display", lambda *args: Interrupt(4))
        assert lab(words) == INTERRUPTED
    assert "the same command resumes" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert len(list((tmp_path / "store").rglob("checkpoint-3"))) == 1
    assert lab(words) == 0
    assert len(read_body(tmp_path / "out/smoke/tiny.json", Reproduction).models) == 2


class Said(Overview):
    """Remembers what is said, and lets go of a lock once the process waits."""

    def __init__(self, lock):
        super().__init__()
        self.said, self._lock = [], lock

    def say(self, text):
        self.said.append(text)
        if "waiting" in text:
            threading.Timer(0.1, self._lock.close).start()


@pytest.fixture
def busy(tmp_path):
    """What another process has that measures with the models of the store."""
    (tmp_path / "store/work").mkdir(parents=True)
    with contextlib.closing(Lock(tmp_path / "store/work" / (run.MEASURED + LOCK))) as lock:
        lock.take()
        yield lock


@pytest.mark.usefixtures("only_tiny")
def test_two_processes_measure_in_turn(tmp_path, busy):
    said = Said(busy)
    found = run.reproduce("tiny", store=tmp_path / "store", out=tmp_path / "out", overview=said)
    assert found[0].record.cells
    assert [text for text in said.said if "waiting" in text] == [
        f"another process measures with the models of {tmp_path / 'store'}: waiting for it (not with another --store)"
    ]
    assert not busy.held


def test_a_table_of_losses_waits_for_nobody(tmp_path, busy, monkeypatch):
    only(monkeypatch, dataclasses.replace(TINY, losses_only=True))
    said = Said(busy)
    assert run.reproduce("tiny", store=tmp_path / "store", out=tmp_path / "out", overview=said)[0].record.cells
    assert said.said == ["measuring: tiny"]
    assert busy.held
