"""One training serves every experiment that needs it, whoever trained it and whatever it was called."""

import contextlib
import dataclasses
import json
import shutil

import pytest

from lab.engine.frame import Need
from lab.engine.store import DIVERGED, Store, finished_runs
from lab.runs import find_run
from selattn.errors import SelattnError
from selattn.training import train
from selattn.training.config import Checkpoints, Evaluation, Optimizer, Schedule, TextData
from selattn.training.folder import Claim
from selattn.training.identity import training_key
from selattn.training.overrides import override
from selattn.utils.files import LOCK
from tests.lab.tiny import tiny_run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A finished run of `selattn train`."""
    folder = tmp_path_factory.mktemp("runs") / "deep" / "mine"
    train(tiny_run(), folder)
    return folder


def key(run, **changes):
    return training_key(dataclasses.replace(run, **changes).to_dict())


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"log_every": 1},
        {"checkpoints": Checkpoints(every=1, keep=1)},
        {"evaluation": Evaluation(every=1, rows=8, batch=2)},
        {"model": {**tiny_run().model, "positions": "learned"}},  # which is the default
    ],
)
def test_what_does_not_decide_the_weights_is_no_part_of_the_key(change):
    assert key(tiny_run(), **change) == key(tiny_run())


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"optimizer": Optimizer(lr=1e-3)},
        {"schedule": Schedule(steps=5, warmup=1)},
        {"evaluation": Evaluation(every=2, rows=7, batch=4)},  # the loss is another
        {"model": {**tiny_run().model, "positions": "rotary"}},
        {"data": TextData()},
    ],
)
def test_what_decides_them_is(change):
    assert key(tiny_run(), **change) != key(tiny_run())


def test_a_text_is_known_by_its_name_wherever_it_lies():
    run = find_run("zoo-memory")
    keys = {
        training_key(override(run, [f"data.source={at}"]).to_dict()) for at in ("data/enwik8-clean", "/x/enwik8-clean")
    }
    assert keys == {training_key(override(run, ["data.source=enwik8-clean"]).to_dict())}


def test_a_finished_run_is_adopted_once_and_never_trained_again(run_folder, tmp_path, monkeypatch):
    store = Store(tmp_path / "store")
    assert store.find(Need(tiny_run())) is None
    assert store.adopt(run_folder.parents[1]) == {run_folder: "adopted"}
    assert store.adopt(run_folder.parents[1]) == {run_folder: "is there already"}
    monkeypatch.setattr("lab.engine.store.train", lambda *args, **kwargs: pytest.fail("trained again"))
    found = store.train(Need(tiny_run(name="another name", log_every=1)))
    assert (
        found.score().loss
        == json.loads((run_folder / "model/training_record.json").read_text())["evaluation"]["validation"]["loss"]
    )
    assert [step for step, _, _ in found.evaluations()] == [2, 4]
    assert found.used("it").commit == found.made.commit
    assert store.find(Need(tiny_run(seed=1))) is None


def test_a_training_that_was_begun_gives_way_unless_it_is_running(run_folder, tmp_path):
    store, need = Store(tmp_path / "store"), Need(tiny_run())
    begun = store.place(need.key)
    shutil.copytree(run_folder, begun, ignore=shutil.ignore_patterns("model"))
    before = sorted(begun.rglob("*"))
    with contextlib.closing(Claim(begun)) as claim:
        claim.take()
        assert store.adopt(run_folder) == {run_folder: "is being trained"}
        assert [path for path in sorted(begun.rglob("*")) if path.name != LOCK] == before
    assert store.find(need) is None
    assert store.adopt(run_folder) == {run_folder: "adopted"}
    assert store.find(need).record.steps == 4
    assert not list(begun.glob("checkpoint-*"))
    assert [path.name for path in store.folder.iterdir()] == ["models"]


def test_a_training_that_ends_before_it_is_removed_stays(run_folder, tmp_path, monkeypatch):
    store = Store(tmp_path / "store")
    begun = store.place(Need(tiny_run()).key)
    shutil.copytree(run_folder, begun, ignore=shutil.ignore_patterns("model"))

    def ends(claim):
        shutil.copytree(run_folder / "model", begun / "model")
        return True

    monkeypatch.setattr(Claim, "take_if_free", ends)
    assert store.adopt(run_folder) == {run_folder: "is there already"}
    assert list(begun.glob("checkpoint-*"))


def test_what_cannot_be_adopted_is_said(run_folder, tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(run_folder, runs / "old")
    file = runs / "old" / "model" / "training_record.json"
    record = json.loads(file.read_text())
    del record["steps"]
    file.write_text(json.dumps(record))
    shutil.copytree(run_folder, runs / "tuned")
    tuned = {**json.loads((run_folder / "model/training_record.json").read_text())}
    tuned["run"]["start"] = {"model": "elsewhere", "ramp": 0}
    (runs / "tuned/model/training_record.json").write_text(json.dumps(tuned))
    shutil.copytree(run_folder, runs / "unfinished", ignore=shutil.ignore_patterns("model"))
    found = Store(tmp_path / "store").adopt(runs)
    assert "lacks 'steps'" in found.pop(runs / "old")
    assert found == {runs / "tuned": "left out: it began with the model of another run"}
    assert not (tmp_path / "store" / "models").exists()
    with pytest.raises(SelattnError, match="is not a folder: --adopt takes"):
        Store(tmp_path / "store").adopt(tmp_path / "nowhere")


def test_a_model_can_begin_with_another_of_the_store(tmp_path):
    store = Store(tmp_path / "store")
    first = Need(tiny_run("standard"))
    second = Need(tiny_run("selective", schedule=Schedule(steps=2, warmup=0)), after=first)
    assert second.key != Need(second.run).key
    assert "hidden_size" not in second.run.model
    found = store.train(second)
    assert found.record.run["start"]["model"] == store.find(first).model
    assert len(list(finished_runs(tmp_path / "store"))) == 2


def test_a_run_that_diverges_is_remembered(tmp_path, monkeypatch):
    store = Store(tmp_path / "store")
    need = Need(tiny_run(optimizer=Optimizer(lr=1e30, clip=0), schedule=Schedule(steps=40, warmup=0)))
    found = store.train(need)
    assert (found.record, found.score()) == (None, None)
    assert found.diverged == json.loads((found.folder / DIVERGED).read_text())["step"] > 0
    monkeypatch.setattr("lab.engine.store.train", lambda *args, **kwargs: pytest.fail("trained again"))
    assert store.train(need).diverged == found.diverged
    with pytest.raises(SelattnError, match="diverged at step"):
        _ = found.model
