"""`python -m lab zoo` makes the models that `selattn zoo` lists."""

import json
import re

import pytest

from lab import zoo
from lab.__main__ import main as lab
from lab.runs import ZOO
from lab.tasks import Parity
from selattn.cli.main import main
from selattn.errors import SelattnError
from selattn.models.loading import find_folder
from selattn.training import RunConfig
from selattn.training.config import Batching, Checkpoints, Evaluation, Schedule

MODEL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8}


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


@pytest.fixture
def small_zoo(tmp_path, monkeypatch):
    monkeypatch.setenv("SELATTN_ZOO", str(tmp_path / "zoo"))
    monkeypatch.setattr(zoo, "ZOO", {"zoo-one": None, "zoo-two": None})
    monkeypatch.setattr(zoo, "find_run", lambda name: tiny(name))
    monkeypatch.chdir(tmp_path)


def test_the_zoo_is_made_listed_and_used(small_zoo, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["zoo"]) == 2
    assert "there is no zoo at" in capsys.readouterr().err
    with pytest.raises(SelattnError, match="there is no zoo at"):
        find_folder("zoo:one")
    assert lab(["zoo"]) == 0
    capsys.readouterr()
    assert main(["zoo"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "zoo:" in line]
    assert ["zoo:one" in rows[0], "zoo:two" in rows[1], len(rows)] == [True, True, 2]
    files = {path.name for path in find_folder("zoo:one").iterdir()}
    assert files >= {"config.json", "model.safetensors", "training_record.json", "tokenizer.json", "sample.txt"}
    assert json.loads((find_folder("zoo:one") / "config.json").read_text())["dtype"] == "bfloat16"
    assert main(["info", "zoo:one"]) == 0
    for name, advice in (("zoo:on", "did you mean zoo:one?"), ("one", "did you mean zoo:one?")):
        with pytest.raises(SelattnError, match=advice.replace("?", "[?]")):
            find_folder(name)


def test_a_record_that_is_none_is_told(small_zoo, tmp_path, capsys):
    assert lab(["zoo", "one"]) == 0
    capsys.readouterr()
    for record in ("{", "{}", '{"versions": {}, "run": {}}'):
        (tmp_path / "zoo" / "one" / "training_record.json").write_text(record)
        assert main(["zoo"]) == 2
        assert re.search(r"training_record.json (is not a record|lacks )", capsys.readouterr().err)
    (tmp_path / "zoo" / "one" / "training_record.json").unlink()
    assert main(["zoo"]) == 0
    assert "zoo:one" in capsys.readouterr().out


def test_only_what_is_missing_is_made(small_zoo, monkeypatch):
    assert lab(["zoo", "two"]) == 0
    monkeypatch.setattr(zoo, "train", None)
    assert lab(["zoo", "two"]) == 0


def test_the_zoo_has_what_it_is_to_have():
    names = [run.removeprefix("zoo-") for run in ZOO]
    assert names[:4] == ["standard", "selective", "memory", "memory-2048"]
    assert names[4:] == ["variable-assignment-selective", "variable-assignment-standard"]
