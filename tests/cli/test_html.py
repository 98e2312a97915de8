"""`--html`: train, prune and eval write a report of what they found, with the numbers of their records."""

import json
from pathlib import Path

import pytest

from selattn.cli.main import main
from tests.cli.test_train import RUN, TINY
from tests.evaluation.folders import model_folder, text_file
from tests.views.outline import Outline

TEXT = ["--data", "text.txt", "--validation", "0.8", "--rows", "6"]


@pytest.fixture
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path / "cache"))
    model_folder(Path("model"))
    text_file(Path("text.txt"), documents=40)


def test_train(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", RUN, *TINY, "--html", "deep/run.html"]) == 0
    assert "reported in deep/run.html" in capsys.readouterr().err
    found = json.loads(Path("runs/parity-small-selective/model/training_record.json").read_text())
    loss = found["evaluation"]["validation"]["loss"]
    assert Outline(Path("deep/run.html").read_text()).tables[0][1][:2] == ["validation", f"{loss:.4f}"]


@pytest.mark.usefixtures("_here")
def test_prune():
    how = ["--until", "floor", "--step", "4", "--batch", "2", "--report-rows", "5", "--out", "search"]
    assert main(["prune", "model", *TEXT, *how, "--html", "search.html"]) == 0
    losses, budgets = Outline(Path("search.html").read_text()).tables
    found = json.loads(Path("search/record.json").read_text())
    assert losses[2][2] == f"{found['report']['pruned']:.4f}"
    assert [int(row[1]) for row in budgets[1:-1]] == found["budgets"]


@pytest.mark.usefixtures("_here")
def test_eval(capsys):
    assert main(["eval", "model", "model@6", *TEXT, "--speed", "--record", "r.json", "--html", "r.html"]) == 0
    assert "reported in r.html" in capsys.readouterr().out
    losses, memory, speed = Outline(Path("r.html").read_text()).tables
    found = json.loads(Path("r.json").read_text())["models"]
    assert [row[1] for row in losses[1:]] == [f"{one['text']['text.txt']['loss']:.4f}" for one in found]
    assert [row[0] for row in memory[1:]] == ["model", "model@6"]
    assert speed[2][1] == f"{found[1]['decoding']['cache_bytes']:,}"


@pytest.mark.usefixtures("_here")
def test_eval_of_a_curve():
    assert main(["eval", "model@sizes:selective", "--curve", *TEXT, "--sizes", "8", "4", "--html", "c.html"]) == 0
    (ends,) = Outline(Path("c.html").read_text()).tables
    assert [cell.split(":")[0] for cell in ends[1][1:3]] == ["8", "4"]
