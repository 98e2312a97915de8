"""From a name to a record, a table and a list: one experiment end to end, interrupted and not."""

import json
import signal

import pytest

from selattn.cli.main import INTERRUPTED, main
from selattn.reproduction import experiments, run
from selattn.reproduction.frame import Reproduction
from selattn.reproduction.scales import find_scale
from selattn.training.display import Display
from selattn.utils.records import read_body
from tests.reproduction.tiny import TINY


@pytest.fixture
def _only_tiny(monkeypatch):
    for place in (experiments, run):
        monkeypatch.setattr(place, "EXPERIMENTS", {"tiny": TINY})


@pytest.mark.usefixtures("_only_tiny")
def test_an_experiment_end_to_end(tmp_path, capsys, monkeypatch):
    words = ["reproduce", "tiny", "--seeds", "0,1", "--store", str(tmp_path / "store"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    said = capsys.readouterr()
    assert "| loss |" in said.out
    assert "run 1 of 4" in said.err
    record = read_body(tmp_path / "out/smoke/tiny.json", Reproduction)
    assert record.seeds == (0, 1)
    assert [model.name for model in record.models] == [
        f"{kind}, seed {s}" for s in (0, 1) for kind in ("standard", "selective")
    ]
    assert record.cell("loss", "selective").values == tuple(
        m.evaluation["validation"]["loss"] for m in record.models[1::2]
    )
    whole = json.loads((tmp_path / "out/smoke/tiny.json").read_text())
    assert whole["seed"] == [0, 1]
    assert {"commit", "versions", "machine", "command"} <= set(whole)
    assert "2.5" in (tmp_path / "out/smoke/tiny.tex").read_text()
    monkeypatch.setattr("selattn.reproduction.store.train", lambda *args, **kwargs: pytest.fail("trained again"))
    assert main([*words[:3], "1,0", *words[4:]]) == 0
    assert main(["reproduce", "--list", "--out", str(tmp_path / "out")]) == 0
    assert "smoke" in capsys.readouterr().out.splitlines()[-3]


@pytest.mark.usefixtures("_only_tiny")
def test_ctrl_c_ends_with_a_checkpoint_and_the_same_command_goes_on(tmp_path, capsys, monkeypatch):
    class Presses(Display):
        def step(self, step):
            if step == 3:
                signal.raise_signal(signal.SIGINT)

    words = ["reproduce", "tiny", "--store", str(tmp_path / "store"), "--out", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr("selattn.reproduction.progress.ShownOverview.display", lambda *args: Presses())
        assert main(words) == INTERRUPTED
    assert "the same command goes on" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert len(list((tmp_path / "store").rglob("checkpoint-3"))) == 1
    assert main(words) == 0
    assert len(read_body(tmp_path / "out/smoke/tiny.json", Reproduction).models) == 2


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_every_experiment_says_what_it_needs_at_every_scale(scale):
    size = find_scale(scale)
    for each in experiments.EXPERIMENTS.values():
        assert each.sentence
        if scale in each.scales:
            needs = each.needs(size, size.seeds)
            json.dumps([need.run.to_dict() for need in needs.values()])
            assert all(need.run.seed <= max(size.seeds) + 1 for need in needs.values())


def test_the_laptop_finds_the_zoo_s_runs():
    """What was trained by `selattn train zoo-KIND` with these settings is what the long runs need."""
    from selattn.training.identity import training_key
    from selattn.training.overrides import override
    from selattn.training.runs import find_run

    laptop = find_scale("laptop", "somewhere/enwik8-clean")
    needs = experiments.EXPERIMENTS["efficiency"].needs(laptop, (1,))
    settings = ["data.source=data/enwik8-clean", "model.positions=rotary", "schedule.steps=7320", "seed=1"]
    for kind in ("standard", "selective", "memory"):
        trained = override(find_run(f"zoo-{kind}"), [*settings, "evaluation.every=488", "checkpoints.every=122"])
        assert training_key(trained.to_dict()) == needs[f"{kind}, seed 1"].key
