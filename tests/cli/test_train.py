"""`selattn train` from the outside."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.__main__ import main as lab
from lab.runs import RUNS, find_run
from selattn.cli.main import main
from selattn.cli.settings import fields
from selattn.training import presets

RUN = "lab.runs:parity-small-selective"  # it needs no text
TINY = [
    *("model.hidden_size=16", "model.num_hidden_layers=2", "model.num_attention_heads=2", "model.head_dim=8"),
    *("data.bits=4", "batch.size=4", "schedule.steps=2", "schedule.warmup=0"),
    *("evaluation.every=2", "evaluation.rows=4", "log_every=1"),
]


def test_a_run_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", RUN, *TINY]) == 0
    err = capsys.readouterr().err
    assert "the model is in runs/parity-small-selective/model" in err
    assert "kept by layer" in err
    assert json.loads(Path("runs/parity-small-selective/run.json").read_text())["data"]["bits"] == 4
    assert main(["train", RUN, *TINY]) == 2
    assert "continue it with --resume, or start over with --overwrite" in capsys.readouterr().err
    assert main(["train", RUN, "--resume", *TINY]) == 0
    assert "resuming" not in capsys.readouterr().err  # it has ended
    assert main(["info", "runs/parity-small-selective"]) == 0


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        ('{"body": "a text"}\n', [], "corpus.jsonl, line 1: no column 'text'; there are 'body'"),
        ('{"text": "a text"}\n', ["data.column=body"], "corpus.jsonl, line 1: no column 'body'; there are 'text'"),
        ("", [], "corpus.jsonl is empty"),
        ('{"text": 3', [], "corpus.jsonl, line 1"),
        (None, ["data.vocabulary=300", "data.context=100000"], "the corpus is smaller than one context"),
        (None, ["data.vocabulary=9000"], "the text is too small for 9000 tokens"),
    ],
)
def test_a_text_that_cannot_be_trained_on(content, settings, message, tmp_path, monkeypatch, capsys):
    """One line, no run, and nothing half written in the cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path / "cache"))
    letters = "etaoinshrdlu"
    words = [f"{letters[i % 12]}{letters[i % 11]}{letters[i % 7]}" for i in range(400)]
    short = "".join(json.dumps({"text": " ".join(words[i : i + 9])}) + "\n" for i in range(0, 400, 9))
    Path("corpus.jsonl").write_text(short if content is None else content)
    assert main(["train", "text-small-selective", "data.source=corpus.jsonl", *settings]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert message in err
    assert not Path("runs").exists()
    assert list(tmp_path.rglob("*.part*")) == []


def test_list(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for command, runs in ((main, presets.RUNS), (lab, RUNS)):
        assert command(["train", "--list"]) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 80
        assert all(f" {name} " in out for name in runs)
    assert lab(["train", "--list", "c4-d28"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines() if "28×1792" in line} == {
        "c4-d28-standard",
        "c4-d28-selective",
        "c4-d28-memory",
    }


def test_show(capsys, monkeypatch):
    """Each field with its value and what it is."""
    monkeypatch.setenv("COLUMNS", "300")
    assert lab(["train", "copy-small-standard", "optimizer.lr=0.125", "--show"]) == 0
    shown = dict(line.strip().split(None, 1) for line in capsys.readouterr().out.splitlines() if " " in line.strip())
    texts = {name: " ".join(shown[name].split()) for name in ("optimizer.lr", "model.vocab_size", "data.longest")}
    assert texts == {
        "optimizer.lr": "0.125 the peak of the learning rate.",
        "model.vocab_size": "30 tokens in the vocabulary.",
        "data.longest": "24 L_max of the paper.",
    }
    assert all(name in shown for name in fields(find_run("copy-small-standard")))


def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    """The whole of it, in a process of its own: a checkpoint, the command, exit code 130, and that command works."""
    endless = ["evaluation.target=none", "schedule.steps=100000"]
    command = [sys.executable, "-m", "selattn", "train", RUN, *TINY, *endless]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    log = tmp_path / "runs/parity-small-selective/log.jsonl"
    while process.poll() is None and not log.exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "with a checkpoint; continue with:" in err
    assert err.strip().endswith("schedule.steps=100000 --resume")
    (seal,) = (tmp_path / "runs/parity-small-selective").glob("checkpoint-*/whole.json")
    step = int(seal.parent.name.removeprefix("checkpoint-"))
    again = subprocess.Popen([*command, "--resume"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    assert again.stderr.readline() == f"resuming from step {step:,} of 100,000\n"
    assert again.stderr.readline().startswith("step ")
    monkeypatch.chdir(tmp_path)
    code, second = main(command[3:]), capsys.readouterr().err
    again.send_signal(signal.SIGINT)
    assert "resuming" not in again.communicate(timeout=120)[1]
    assert again.returncode == 130
    assert code == 2
    assert second.startswith("selattn: error: another process is training in runs/parity-small-selective")
    assert "--resume" not in second
