"""Every experiment at the smoke scale, from nothing to records, tables and figures, without a network."""

import json

import pytest

from lab.__main__ import main as lab
from lab.experiments import EXPERIMENTS

# Six of them need the same three models: not a minute.
QUICK = ("course", "efficiency", "comparison", "needle", "persisted", "attention-patterns", "downstream")


def smoke(names, folder, monkeypatch, capsys):
    """Run them at the smoke scale with nothing cached; what was printed."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("SELATTN_CACHE", str(folder / "cache"))
    where = ["--store", str(folder / "store"), "--out", str(folder / "out")]
    assert lab([*names, "--scale", "smoke", *where]) == 0
    return capsys.readouterr().out


def check_records(names, folder):
    for name in names:
        record = json.loads((folder / f"{name}.json").read_text())
        assert record["cells"]
        assert bool(record["claims"]) == (name != "comparison")  # whose columns cannot be compared
        if EXPERIMENTS[name].figure is not None:
            assert list(folder.glob(f"{name}*.png"))


def test_some_experiments_share_their_models(tmp_path, monkeypatch, capsys):
    smoke(QUICK, tmp_path, monkeypatch, capsys)
    check_records(QUICK, tmp_path / "out" / "smoke")
    assert len(list((tmp_path / "store" / "models").iterdir())) == 5  # a trio for six of them, and a pair


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_experiment_runs_at_the_smoke_scale(tmp_path, monkeypatch, capsys):
    said = smoke(["--all"], tmp_path, monkeypatch, capsys)
    assert "Python's own documentation" in said
    assert "made-up questions" in said.lower()
    check_records(EXPERIMENTS, tmp_path / "out" / "smoke")
