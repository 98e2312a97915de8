"""What may be set in every training: never that in which an experiment's own trainings differ."""

import dataclasses

import pytest

from lab.engine.experiment import Need, changed_beside, trio, varied
from lab.engine.lab import Lab
from lab.engine.records import Measured
from lab.engine.run import check_settings, needs_of, reproduce, with_reading
from lab.experiments import EXPERIMENTS
from lab.scales import find_scale
from selattn.data import Reading
from selattn.errors import SelattnError
from selattn.training.config import Checkpoints, Machine, Optimizer, Schedule
from tests.lab.tiny import TINY, only, tiny_run

LAPTOP = find_scale("laptop")


def check(setting, *names, scale=LAPTOP):
    check_settings([setting], [EXPERIMENTS[name] for name in names], scale)


def test_trainings_vary_in_what_decides_their_weights_alone():
    first = tiny_run()
    assert varied([Need(first), Need(tiny_run(name="other", log_every=1, checkpoints=Checkpoints(every=1)))]) == set()
    assert varied([Need(first), Need(tiny_run(machine=Machine(precision="bf16")))]) == set()
    assert varied([Need(first), Need(tiny_run(model={**first.model, "positions": "learned"}))]) == set()  # the default
    assert varied([Need(first), Need(tiny_run("standard"))]) == {"model.attention"}
    assert varied([Need(first), Need(first), Need(tiny_run(optimizer=Optimizer(lr=1e-3)))]) == {"optimizer.lr"}
    assert varied([]) == set()


def test_a_training_is_compared_with_what_it_begins_with():
    before = Need(tiny_run())
    longer = Need(tiny_run(schedule=Schedule(steps=5, warmup=1)), after=before)
    assert "hidden_size" not in longer.run.model
    assert varied([longer]) == {"schedule.steps"}


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("schedule.steps=9", "fine-tuning"),
        ("schedule.steps=9", "memory-late"),
        ("optimizer.lr=1e-3", "learning-rate"),
        ("model.positions=rotary", "positions"),
        ("model.positions=rotary", "masks"),
        ("model.memory_epsilon=0.1", "epsilon"),
        ("batch.size=2", "context-size"),
    ],
)
def test_what_an_experiment_varies_is_refused_by_its_name(setting, name):
    with pytest.raises(SelattnError, match=rf"^{setting.partition('=')[0]}=.* {name}, whose own trainings"):
        check(setting, "needle", name)


@pytest.mark.parametrize("setting", ["schedule.steps=1500", "machine.precision=bf16", "model.attention_dropout=0.1"])
def test_what_all_of_them_share_can_be_set(setting):
    check(setting, "efficiency", "needle", "masks", "context-size")


def test_no_two_trainings_that_differ_become_one():
    """Whatever is let through: as many trainings as before."""
    for name, each in EXPERIMENTS.items():
        plain = needs_of(each, LAPTOP, (0,))
        for setting in ("schedule.steps=9", "optimizer.lr=1e-3", "model.positions=learned", "model.memory_epsilon=0.1"):
            try:
                check(setting, name)
                changed = needs_of(each, LAPTOP, (0,), [setting])
            except SelattnError:  # refused here, or no field of a T5
                continue
            assert len({need.key for need in changed.values()}) == len({need.key for need in plain.values()})


def test_a_continuation_that_comes_up_keeps_what_is_its_own():
    settings = ["schedule.steps=9", "optimizer.beta2=0.99", "model.hidden_size=32", "model.cache_budgets=8"]
    base = Need(tiny_run()).changed(settings)
    more = Need(tiny_run(schedule=Schedule(steps=2, warmup=0), model={"cache_budgets": [4]}), after=base)
    twice = Need(tiny_run(schedule=Schedule(steps=3, warmup=0), model={"cache_budgets": [4]}), after=more)
    found = changed_beside(more, [Need(tiny_run())], settings)
    assert found.after == base
    assert (found.run.schedule.steps, found.run.model["cache_budgets"]) == (2, [4])
    assert found.run.optimizer.beta2 == 0.99
    assert changed_beside(twice, [Need(tiny_run())], settings).after == found


READING = ["data.validation=0.25", "data.separator=line", "data.limit=30", "data.column=body"]


def test_what_is_measured_on_is_held_out_as_the_trainings_have_it():
    """The text that a lab measures on is read in the way of its trainings, whatever of that is set."""
    assert len(READING) == len(dataclasses.fields(Reading))
    for setting in (*READING, "data.vocabulary=64", "schedule.steps=9"):
        scale = with_reading(LAPTOP, [setting])
        lab = Lab(scale, (0,), None, trio(scale, (0,)), None, None, None, settings=[setting])
        assert {need.run.data.reading() for need in lab.needs.values()} == {lab.text().reading}
        assert (lab.text().reading == LAPTOP.data.reading()) == (setting not in READING)
        assert scale.data.vocabulary == LAPTOP.data.vocabulary
    with pytest.raises(SelattnError, match=r"data\.limit must be"):
        with_reading(LAPTOP, ["data.limit=x"])


def test_the_scale_of_an_experiment_reads_as_its_settings_say(tmp_path, monkeypatch):
    labs = []

    def evaluate(lab):
        labs.append(lab)
        return Measured()

    watched = dataclasses.replace(TINY, needs=lambda scale, seeds: {}, evaluate=evaluate)
    only(monkeypatch, watched)
    reproduce("tiny", settings=["data.validation=0.25"], store=tmp_path / "store", out=tmp_path / "out")
    assert labs[0].text().reading.validation == 0.25
