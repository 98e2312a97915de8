"""One training serves every experiment that needs it, whoever trained it and whatever it was called."""

import dataclasses
import json

import pytest

from lab.engine.experiment import Need
from lab.engine.store import DIVERGED, Store
from lab.runs import find_run
from selattn.cli.settings import override
from selattn.errors import SelattnError
from selattn.training.config import Checkpoints, Evaluation, Optimizer, Schedule, TextData
from selattn.training.record import training_key
from tests.lab.tiny import tiny_run


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


def test_a_model_can_begin_with_another_of_the_store(tmp_path):
    store = Store(tmp_path / "store")
    first = Need(tiny_run("standard"))
    second = Need(tiny_run("selective", schedule=Schedule(steps=2, warmup=0)), after=first)
    assert second.key != Need(second.run).key
    assert "hidden_size" not in second.run.model
    found = store.train(second)
    assert found.record.run["start"]["model"] == f"{first.key}/model"
    assert len(list((tmp_path / "store").rglob("training_record.json"))) == 2


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


def test_settings_of_another_version_have_no_key():
    """They would be left out of it without a word."""
    run = tiny_run().to_dict()
    with pytest.raises(SelattnError, match="no settings optimiser: another version"):
        training_key({**run, "optimiser": run.pop("optimizer")})
