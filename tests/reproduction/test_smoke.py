"""Every experiment at the smoke scale, from nothing to records, tables and figures, without a network."""

import json

import pytest

from selattn.cli.main import main
from selattn.reproduction import EXPERIMENTS


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_experiment_runs_at_the_smoke_scale(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "out"
    assert main(["reproduce", "--all", "--scale", "smoke", "--store", str(tmp_path / "store"), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "Python's own documentation" in said
    assert "made-up questions" in said.lower()
    for name, experiment in EXPERIMENTS.items():
        record = json.loads((out / "smoke" / f"{name}.json").read_text())
        assert record["cells"]
        assert record["claims"]
        if experiment.figure is not None:
            assert list((out / "smoke").glob(f"{name}*.png"))
