"""`python -m tools.records`: a table of losses grows by what records tell of, and takes runs trained elsewhere."""

import contextlib
import dataclasses
import json
import shutil

import pytest

from lab import experiments
from lab.engine.experiment import Need
from lab.engine.losses import by_positions
from lab.engine.records import Cell, Measured, Reproduction
from lab.engine.run import needs_of, reproduce
from lab.engine.store import Store
from lab.scales import find_scale
from selattn.cli.main import BAD_INPUT
from selattn.errors import SelattnError
from selattn.training import train
from selattn.training.config import Optimizer, Schedule
from selattn.training.folder import lock_of
from selattn.utils.files import LOCK, Lock
from selattn.utils.records import read_body
from tests.lab.tiny import TINY, only, tiny_run
from tools.records import RecordedStore, adopt, check_positions
from tools.records import main as records

LOSSES = dataclasses.replace(TINY, losses_only=True)


@pytest.fixture(autouse=True)
def _only_losses(monkeypatch):
    only(monkeypatch, LOSSES)


def test_seeds_are_added_without_the_weights_of_the_others(tmp_path, monkeypatch):
    first = reproduce("tiny", seeds=(0,), store=tmp_path / "here", out=tmp_path / "out")[0].record
    trained = []
    real = Store.train
    monkeypatch.setattr(
        Store, "train", lambda self, need, *rest: trained.append(need.run.seed) or real(self, need, *rest)
    )
    words = ["tiny", "--seeds", "0,1", "--store", str(tmp_path / "there"), "--out", str(tmp_path / "out")]
    assert records([*words, "--extend"]) == 0
    assert trained == [1, 1]
    record = read_body(tmp_path / "out/smoke/tiny.json", Reproduction)
    whole = reproduce("tiny", seeds=(0, 1), store=tmp_path / "anew", out=tmp_path / "other")[0].record
    assert record.cells == whole.cells
    assert [model.name for model in record.models] == [model.name for model in whole.models]
    assert record.models[:2] == first.models  # with the date, commit and machine of their training


def _one_seed(lab):
    (seed,) = lab.seeds
    cells = (Cell("loss", "selective", (lab.trained("selective", seed).score().loss,)),)
    return Measured(cells, details={"losses": list(lab.losses("selective")), "of": "all"})


def test_a_table_that_is_measured_by_seed_grows_without_the_models_of_the_others(tmp_path, monkeypatch):
    only(monkeypatch, dataclasses.replace(TINY, evaluate=_one_seed, by_seed=True))
    reproduce("tiny", seeds=(2, 0), store=tmp_path / "here", out=tmp_path / "out")
    words = ["tiny", "--seeds", "0,1", "--extend", "--out", str(tmp_path / "out"), "--store"]
    assert records([*words, str(tmp_path / "there")]) == 0
    assert len(list((tmp_path / "there").rglob("training_record.json"))) == 2
    record = read_body(tmp_path / "out/smoke/tiny.json", Reproduction)
    assert record.seeds == (2, 0, 1)
    assert [each["seed"] for each in record.details["measured"]] == [2, 0, 1]
    assert records([*words, str(tmp_path / "nowhere")]) == 0  # nothing is lacking
    assert not (tmp_path / "nowhere/models").exists()
    assert read_body(tmp_path / "out/smoke/tiny.json", Reproduction) == record
    whole = reproduce("tiny", seeds=(2, 0, 1), store=tmp_path / "anew", out=tmp_path / "other")[0].record
    assert (record.cells, record.details["losses"]) == (whole.cells, whole.details["losses"])


def test_seeds_of_other_settings_are_not_joined(tmp_path, monkeypatch, capsys):
    only(monkeypatch, dataclasses.replace(TINY, evaluate=_one_seed, by_seed=True))
    reproduce("tiny", seeds=(0,), store=tmp_path / "here", out=tmp_path / "out", settings=["optimizer.lr=0.001"])
    words = ["tiny", "--seeds", "1", "--extend", "--out", str(tmp_path / "out"), "--store", str(tmp_path / "here")]
    assert records(words) == BAD_INPUT
    assert "was made with other settings (set): give another --out" in capsys.readouterr().err


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
    store = RecordedStore(tmp_path / "none", tmp_path / "out/smoke")
    found = store.find(Need(lost))
    assert (found.score(), found.diverged) == (None, before.models[1].diverged)
    again = reproduce("tiny", seeds=(0,), store=store, out=tmp_path / "out")[0].record
    assert again == before
    assert not (tmp_path / "none/models").exists()


def test_of_two_records_the_newer_counts(tmp_path):
    record = reproduce("tiny", seeds=(0,), store=tmp_path / "here", out=tmp_path / "out")[0].record
    file = tmp_path / "out/smoke/tiny.json"
    newer = json.loads(file.read_text())
    newer["models"][0]["date"], newer["models"][0]["evaluation"]["validation"]["loss"] = "2100-01-01", 7.0
    file.with_name("a.json").write_text(json.dumps(newer))
    found = RecordedStore(tmp_path / "none", file.parent).find(LOSSES.needs(None, (0,))["standard, seed 0"])
    assert found.folder.name == "a.json"
    assert found.score().loss == 7.0
    assert record.cells[0].values != (7.0,)


def test_a_broken_record_is_named(tmp_path):
    (tmp_path / "half.json").write_text("{")
    with pytest.raises(SelattnError, match="half"):
        RecordedStore(tmp_path / "none", tmp_path)


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


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A finished run of `selattn train`."""
    folder = tmp_path_factory.mktemp("runs") / "deep" / "mine"
    train(tiny_run(), folder)
    return folder


def test_a_finished_run_is_adopted_once_and_never_trained_again(run_folder, tmp_path, monkeypatch):
    store = Store(tmp_path / "store")
    assert store.find(Need(tiny_run())) is None
    assert adopt(store, run_folder.parents[1]) == {run_folder: "adopted"}
    assert adopt(store, run_folder.parents[1]) == {run_folder: "is there already"}
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
    with contextlib.closing(lock_of(begun)) as claim:
        claim.take()
        assert adopt(store, run_folder) == {run_folder: "is being trained"}
        assert [path for path in sorted(begun.rglob("*")) if path.name != LOCK] == before
    assert store.find(need) is None
    assert adopt(store, run_folder) == {run_folder: "adopted"}
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

    monkeypatch.setattr(Lock, "take_if_free", ends)
    assert adopt(store, run_folder) == {run_folder: "is there already"}
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
    found = adopt(Store(tmp_path / "store"), runs)
    assert "lacks 'steps'" in found.pop(runs / "old")
    assert found == {runs / "tuned": "left out: it began with the model of another run"}
    assert not (tmp_path / "store" / "models").exists()
    with pytest.raises(SelattnError, match="is not a folder: --adopt takes"):
        adopt(Store(tmp_path / "store"), tmp_path / "nowhere")
