"""`selattn train`, `selattn study` and `selattn zoo` from the outside."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from selattn.cli.main import main
from selattn.data import Parity
from selattn.errors import SelattnError
from selattn.models.loading import find_folder
from selattn.training import RunConfig, make_zoo, study
from selattn.training.config import Batching, Checkpoints, Evaluation, Schedule
from selattn.training.display import Display
from selattn.training.overrides import fields
from selattn.training.runs import RUNS, find_run
from selattn.training.runs import zoo as zoo_runs

MODEL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8}
TINY = [
    *("model.hidden_size=16", "model.num_hidden_layers=2", "model.num_attention_heads=2", "model.head_dim=8"),
    *("data.bits=4", "batch.size=4", "schedule.steps=2", "schedule.warmup=0"),
    *("evaluation.every=2", "evaluation.rows=4", "log_every=1"),
]


def tiny(name="tiny", **model):
    return RunConfig(
        name,
        data=Parity(bits=4),
        model=MODEL | {"attention": ["selective"]} | model,
        batch=Batching(4),
        schedule=Schedule(steps=2, warmup=0),
        evaluation=Evaluation(every=2, rows=4),
        checkpoints=Checkpoints(every=1),
        log_every=1,
    )


def test_a_run_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "parity-small-selective", *TINY]) == 0
    err = capsys.readouterr().err
    assert "the model is in runs/parity-small-selective/model" in err
    assert "kept by layer" in err
    assert json.loads(Path("runs/parity-small-selective/run.json").read_text())["data"]["bits"] == 4
    assert main(["train", "parity-small-selective", *TINY]) == 2
    assert "go on with --resume, or begin anew with --overwrite" in capsys.readouterr().err
    assert main(["train", "parity-small-selective", "--resume", *TINY]) == 0
    assert "going on" not in capsys.readouterr().err  # it has ended
    assert main(["info", "runs/parity-small-selective"]) == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no run given; see 'selattn train --list'"),
        (["parity-smal-selective"], "unknown run 'parity-smal-selective'; did you mean 'parity-small-selective'?"),
        (["copy-standard", "optimiser.lr=1"], "unknown field 'optimiser.lr'; did you mean 'optimizer.lr'?"),
        (["copy-standard", "--out", "x", "batch.size=a"], "batch.size must be a whole number, not 'a'"),
        (["copy-standard", "--set", "seed=-1"], "run.seed must be at least 0, not -1"),
        (
            ["copy-standard", "--resume", "--overwrite"],
            "--resume goes on and --overwrite begins anew: give one of them",
        ),
        (["copy-standard", "batch.micro=3"], "batch.size 2048 cannot be shared out"),
        (["copy-standard", "machine.shard=fsdp"], "machine.shard=fsdp needs several GPUs"),
        (["copy-standard", "schedule.decay=linear", "schedule.final=0.1"], "schedule.final belongs to the cosine"),
        (
            ["copy-standard", "model.attention=selektive"],
            "unknown attention kind 'selektive' (did you mean 'selective'?)",
        ),
        (["text-small-standard", "data.source=nothing.jsonl"], "nothing.jsonl"),
        (["text-small-standard", "data.source=hub:"], "'hub:' names no dataset: write hub:OWNER/NAME"),
        (["text-small-standard", "data.source=" + "x" * 5000], "(5,000 characters): File name too long"),
        (["copy-standard", "--out", "x" * 5000], "(5,000 characters): File name too long"),
        (["copy-standard", "optimizer.lr=inf"], "optimizer.lr must be a finite number, not inf"),
        (["copy-standard", "optimizer.lr=nan"], "optimizer.lr must be a finite number, not nan"),
        (["copy-standard", "schedule.steps=100"], "schedule.warmup is longer than the run: 1,000 steps of 100"),
        (["copy-standard", "model.attention=selective", "start.ramp=9"], "start.ramp has nothing to ramp from"),
        (["copy-standard", "model.cache_budgets=[4"], "model.cache_budgets must be a whole number or a list"),
        (["copy-standard", "batch.size=1000000000"], "this run needs at least"),
        (["copy-standard", "schedule.steps=" + "9" * 15, "batch.size=1000000"], "is more than can be counted"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(argv, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err
    assert len(err) < 500
    assert list(tmp_path.rglob("*")) == []


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
    assert main(["train", "--list"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert all(f" {name} " in out for name in RUNS)
    assert main(["train", "--list", "c4-d28"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines() if "28×1792" in line} == {
        "c4-d28-standard",
        "c4-d28-selective",
        "c4-d28-memory",
    }


def test_show(capsys, monkeypatch):
    """Each field with its value and what it is."""
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["train", "copy-small-standard", "optimizer.lr=0.125", "--show"]) == 0
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
    command = [sys.executable, "-m", "selattn", "train", "parity-small-selective", *TINY, *endless]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    log = tmp_path / "runs/parity-small-selective/log.jsonl"
    while process.poll() is None and not log.exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "with a checkpoint; go on with:" in err
    assert err.strip().endswith("schedule.steps=100000 --resume")
    (seal,) = (tmp_path / "runs/parity-small-selective").glob("checkpoint-*/whole.json")
    step = int(seal.parent.name.removeprefix("checkpoint-"))
    again = subprocess.Popen([*command, "--resume"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    assert again.stderr.readline() == f"going on from step {step:,} of 100,000\n"
    assert again.stderr.readline().startswith("step ")
    monkeypatch.chdir(tmp_path)
    code, second = main(command[3:]), capsys.readouterr().err
    again.send_signal(signal.SIGINT)
    assert "going on" not in again.communicate(timeout=120)[1]
    assert again.returncode == 130
    assert code == 2
    assert second.startswith("selattn: error: another process is training in runs/parity-small-selective")
    assert "--resume" not in second


# ---- studies ----


@pytest.fixture
def small_study(monkeypatch):
    runs = {"one": tiny("one"), "two": tiny("two", attention=["standard"])}
    monkeypatch.setattr(study, "find_run", runs.__getitem__)
    monkeypatch.setitem(study.STUDIES, "small", study.Study("Is it small?", ("one", "two"), (0, 1)))


def test_a_study_is_recorded(small_study, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["study", "small", "optimizer.lr=1e-3"]) == 0
    record = json.loads(Path("results/small.json").read_text())
    assert record["seed"] == [0, 1]
    assert [(run["run"], run["seed"]) for run in record["runs"]] == [("one", 0), ("two", 0), ("one", 1), ("two", 1)]
    assert record["runs"][0]["config"]["optimizer"]["lr"] == 1e-3
    assert [step for step, _ in record["runs"][0]["training"]] == [1, 2]
    assert [evaluation["step"] for evaluation in record["runs"][0]["evaluations"]] == [2]
    losses = [run["evaluation"]["validation"]["loss"] for run in record["runs"] if run["run"] == "two"]
    spread = record["summary"]["two"]["validation_loss"]
    assert (spread["min"], spread["max"]) == (min(losses), max(losses))
    assert spread["mean"] == pytest.approx(sum(losses) / 2)
    accuracies = [run["evaluations"][0]["validation"]["accuracy"] for run in record["runs"] if run["run"] == "two"]
    on_the_way = record["summary"]["two"]["by_step"]
    assert list(on_the_way) == ["2"]
    assert on_the_way["2"]["validation_accuracy"]["mean"] == pytest.approx(sum(accuracies) / 2)
    assert len(record["summary"]["one"]["validation_kept"]) == 2
    assert "validation_kept" not in record["summary"]["two"]
    assert f"{spread['mean']:.3f}" in capsys.readouterr().out


def test_a_study_of_runs_too_short_for_the_log_is_recorded(small_study, tmp_path, monkeypatch, capsys):
    """No record of the training is due; everything else is there."""
    monkeypatch.chdir(tmp_path)
    assert main(["study", "small", "log_every=100"]) == 0
    record = json.loads(Path("results/small.json").read_text())
    assert [run["tokens_per_second"] for run in record["runs"]] == [None] * 4
    assert [run["training"] for run in record["runs"]] == [[]] * 4
    assert all(run["tokens"] > 0 and run["evaluation"]["validation"]["loss"] > 0 for run in record["runs"])
    assert "At the end" in capsys.readouterr().out


def test_a_study_that_could_not_be_recorded_does_not_begin(small_study, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("results/small.json").mkdir(parents=True)
    assert main(["study", "small"]) == 2
    assert "it is a folder" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_study_does_not_repeat_what_has_ended(small_study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["study", "small"]) == 0
    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*.safetensors")}
    assert main(["study", "small"]) == 0
    assert {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*.safetensors")} == before


def test_the_studies_are_listed(capsys):
    assert main(["study"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("variable_assignment", "synthetic", "lm_comparison"))
    assert main(["study", "lm-comparison"]) == 2
    assert "did you mean 'lm_comparison'?" in capsys.readouterr().err


def test_the_runs_of_the_studies_exist():
    for each in study.STUDIES.values():
        assert set(each.runs) <= set(RUNS)


# ---- the zoo ----


@pytest.fixture
def small_zoo(tmp_path, monkeypatch):
    monkeypatch.setenv("SELATTN_ZOO", str(tmp_path / "zoo"))
    monkeypatch.setattr(make_zoo, "RUNS", {"zoo-one": None, "zoo-two": None})
    monkeypatch.setattr(make_zoo, "find_run", lambda name: tiny(name))
    monkeypatch.chdir(tmp_path)


def test_the_zoo_is_made_listed_and_used(small_zoo, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["zoo"]) == 0
    assert "There are no models" in capsys.readouterr().out
    with pytest.raises(SelattnError, match="there is no zoo at"):
        find_folder("zoo:one")
    assert main(["zoo", "--make"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "zoo:" in line]
    assert ["zoo:one" in rows[0], "zoo:two" in rows[1], len(rows)] == [True, True, 2]
    files = {path.name for path in find_folder("zoo:one").iterdir()}
    assert files == {"config.json", "generation_config.json", "model.safetensors", "training_record.json"}
    assert json.loads((find_folder("zoo:one") / "config.json").read_text())["dtype"] == "bfloat16"
    assert main(["info", "zoo:one"]) == 0
    for name, advice in (("zoo:on", "did you mean zoo:one?"), ("one", "did you mean zoo:one?")):
        with pytest.raises(SelattnError, match=advice.replace("?", "[?]")):
            find_folder(name)


def test_a_record_that_is_none_is_told(small_zoo, tmp_path, capsys):
    assert main(["zoo", "--make", "one"]) == 0
    capsys.readouterr()
    for record in ("{", "{}", '{"versions": {}, "run": {}}'):
        (tmp_path / "zoo" / "one" / "training_record.json").write_text(record)
        assert main(["zoo"]) == 2
        assert re.search(r"training_record.json (is not a record|lacks )", capsys.readouterr().err)
    (tmp_path / "zoo" / "one" / "training_record.json").unlink()
    assert main(["zoo"]) == 0
    assert "zoo:one" in capsys.readouterr().out


def test_only_what_is_missing_is_made(small_zoo, monkeypatch):
    assert main(["zoo", "--make", "two"]) == 0
    monkeypatch.setattr(make_zoo, "train", None)
    assert main(["zoo", "--make", "two"]) == 0


def test_the_zoo_stays_below_its_limit(small_zoo, monkeypatch, tmp_path):
    monkeypatch.setattr(make_zoo, "LIMIT", 10_000)
    with pytest.raises(SelattnError, match="the zoo would have"):
        make_zoo.make_zoo(["one"], None, [], tmp_path / "runs", lambda title: Display())
    assert not (tmp_path / "zoo" / "one").exists()


def test_names_and_settings_of_the_zoo(small_zoo, capsys):
    assert main(["zoo", "--make", "tow"]) == 2
    assert "unknown model 'tow'; did you mean 'two'?" in capsys.readouterr().err
    assert main(["zoo", "one"]) == 2
    assert "names and settings go with --make" in capsys.readouterr().err


def test_the_zoo_has_what_it_is_to_have():
    names = [run.removeprefix("zoo-") for run in zoo_runs.RUNS]
    assert names[:4] == ["standard", "selective", "memory", "memory-2048"]
    assert names[4:] == ["variable-assignment-selective", "variable-assignment-standard"]
