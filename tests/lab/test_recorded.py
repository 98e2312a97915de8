"""A table of losses grows: what a record tells of is not trained again, wherever it was trained."""

import dataclasses
import json

import pytest

from lab import experiments
from lab.__main__ import main as lab
from lab.engine import run
from lab.engine.frame import Need, Reproduction
from lab.engine.grids import by_positions
from lab.engine.recorded import Records
from lab.engine.run import check_positions, needs_of, reproduce
from lab.runs.scales import find_scale
from selattn.errors import SelattnError
from selattn.training.config import Optimizer, Schedule
from selattn.utils.records import read_body
from tests.lab.tiny import TINY, tiny_run

LOSSES = dataclasses.replace(TINY, losses_only=True)


@pytest.fixture(autouse=True)
def _only_losses(monkeypatch):
    for place in (experiments, run):
        monkeypatch.setattr(place, "EXPERIMENTS", {"tiny": LOSSES})


def test_seeds_are_added_without_the_weights_of_the_others(tmp_path, monkeypatch):
    first = reproduce("tiny", seeds=(0,), store=tmp_path / "here", out=tmp_path / "out")[0].record
    trained = []
    real = run.Store.train
    monkeypatch.setattr(
        run.Store, "train", lambda self, need, *rest: trained.append(need.run.seed) or real(self, need, *rest)
    )
    words = ["tiny", "--seeds", "0,1", "--store", str(tmp_path / "there"), "--out", str(tmp_path / "out")]
    assert lab([*words, "--extend"]) == 0
    assert trained == [1, 1]
    record = read_body(tmp_path / "out/smoke/tiny.json", Reproduction)
    whole = reproduce("tiny", seeds=(0, 1), store=tmp_path / "anew", out=tmp_path / "other")[0].record
    assert record.cells == whole.cells
    assert [model.name for model in record.models] == [model.name for model in whole.models]
    assert record.models[:2] == first.models  # with the date, commit and machine of their training


def test_nothing_is_taken_from_records_unless_that_is_asked_for(tmp_path):
    reproduce("tiny", seeds=(0,), store=tmp_path / "here", out=tmp_path / "out")
    reproduce("tiny", seeds=(0,), store=tmp_path / "there", out=tmp_path / "out")
    assert len(list((tmp_path / "there").rglob("training_record.json"))) == 2


def test_a_training_that_diverged_is_known_from_its_record(tmp_path):
    lost = tiny_run(optimizer=Optimizer(lr=1e30, clip=0), schedule=Schedule(steps=40, warmup=0))
    wild = dataclasses.replace(LOSSES, needs=lambda scale, seeds: {
        f"{kind}, seed 0": Need(lost if kind == "selective" else tiny_run(kind)) for kind in ("standard", "selective")
    })  # fmt: skip
    experiments.EXPERIMENTS["tiny"] = wild
    before = reproduce("tiny", seeds=(0,), store=tmp_path / "here", out=tmp_path / "out")[0].record
    found = Records(tmp_path / "out/smoke").find(Need(lost))
    assert (found.score(), found.diverged) == (None, before.models[1].diverged)
    again = reproduce("tiny", seeds=(0,), store=tmp_path / "none", out=tmp_path / "out", extend=True)[0].record
    assert again == before
    assert not (tmp_path / "none/models").exists()


def test_of_two_records_the_newer_counts(tmp_path):
    record = reproduce("tiny", seeds=(0,), store=tmp_path / "here", out=tmp_path / "out")[0].record
    file = tmp_path / "out/smoke/tiny.json"
    newer = json.loads(file.read_text())
    newer["models"][0]["date"], newer["models"][0]["evaluation"]["validation"]["loss"] = "2100-01-01", 7.0
    file.with_name("a.json").write_text(json.dumps(newer))
    found = Records(file.parent).find(LOSSES.needs(None, (0,))["standard, seed 0"])
    assert found.file.name == "a.json"
    assert found.score().loss == 7.0
    assert record.cells[0].values != (7.0,)


def test_a_broken_record_is_named(tmp_path):
    (tmp_path / "half.json").write_text("{")
    with pytest.raises(SelattnError, match="half"):
        Records(tmp_path)


def test_one_kind_of_positions_is_a_part_of_the_table(monkeypatch):
    monkeypatch.undo()
    both, rotary = find_scale("laptop"), find_scale("laptop", positions=["rotary"])
    assert set(by_positions(rotary)) < set(by_positions(both))
    for name in ("context-size", "model-size", "extra-heads", "grouped-query", "masks", "bilinear", "local", "sparse"):
        parts = [
            needs_of(experiments.EXPERIMENTS[name], find_scale("laptop", positions=[each]), (0,))
            for each in ("rotary", "learned")
        ]
        assert {**parts[0], **parts[1]} == needs_of(experiments.EXPERIMENTS[name], both, (0,))


def test_the_usual_positions_of_a_record_are_no_choice(monkeypatch):
    monkeypatch.undo()
    copy = [experiments.EXPERIMENTS["copy"]]
    check_positions(copy, find_scale("laptop", positions=["rotary", "learned"]), ["rotary", "learned"])
    with pytest.raises(SelattnError, match="would change nothing"):
        check_positions(copy, find_scale("laptop", positions=["rotary"]), ["rotary"])
