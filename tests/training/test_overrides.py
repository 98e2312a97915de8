"""`field=value`: typed, nested, immutable, and one clear line for what does not fit."""

import dataclasses

import pytest

from lab.runs import find_run
from selattn.cli.settings import descriptions, fields, override
from selattn.errors import SelattnError
from selattn.models import SelectiveConfig
from selattn.training.model import model_config
from tests.training.tiny import tiny


@pytest.mark.parametrize(
    ("assignment", "at", "value"),
    [
        ("optimizer.lr=1e-3", "optimizer.lr", 1e-3),
        ("schedule.steps=1_000", "schedule.steps", 1000),
        ("schedule.decay=linear", "schedule.decay", "linear"),
        ("batch.micro=4", "batch.micro", 4),
        ("batch.micro=none", "batch.micro", None),
        ("machine.compile=yes", "machine.compile", True),
        ("machine.compile=False", "machine.compile", False),
        ("seed=7", "seed", 7),
        ("data.values=9", "data.values", 9),
        ("start.model=zoo:selective", "start.model", "zoo:selective"),
    ],
)
def test_a_field_is_set(assignment, at, value):
    found = override(tiny(), [assignment])
    for name in at.split("."):
        found = getattr(found, name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("model.num_hidden_layers=4", 4),
        ("model.attention=local:32,local:32,standard", ["local:32", "local:32", "standard"]),
        ("model.attention=standard", "standard"),
        ("model.selection_head=1", 1),
        ("model.selection_head=0,1", [0, 1]),
        ("model.qk_norm=no", False),
        ("model.memory_epsilon=0.5", 0.5),
        ("model.num_key_value_heads=none", None),
    ],
)
def test_a_field_of_the_model_is_set(assignment, value):
    run = override(tiny(), [assignment])
    name = assignment.partition("=")[0].removeprefix("model.")
    assert run.model[name] == value
    config = model_config(run)
    assert isinstance(config, SelectiveConfig)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("optimiser.lr=1", "unknown field 'optimiser.lr'; did you mean 'optimizer.lr'?"),
        ("lr=1", "unknown field 'lr'; did you mean 'optimizer.lr'?"),
        ("model.num_hiden_layers=1", "unknown field 'model.num_hiden_layers'; did you mean 'model.num_hidden_layers'?"),
        ("data.source=c4", "unknown field 'data.source'; "),  # a task has no source
        ("name=other", "unknown field 'name'; "),
        ("qqqqqqq=1", "unknown field 'qqqqqqq'; see 'selattn train RUN --show'"),
        ("optimizer.lr", "'optimizer.lr' is not of the form field=value"),
        ("optimizer.lr=fast", "optimizer.lr must be a number, not 'fast'"),
        ("schedule.steps=1.5", "schedule.steps must be a whole number, not '1.5'"),
        (
            "schedule.decay=sine",
            "schedule.decay must be 'cosine' or 'linear' or 'constant' or 'inverse_sqrt', not 'sine'",
        ),
        ("machine.compile=maybe", "machine.compile must be true or false, not 'maybe'"),
        ("batch.micro=x", "batch.micro must be a whole number or none, not 'x'"),
        ("schedule.steps=0", "schedule.steps must be at least 1, not 0"),
        ("optimizer.lr=nan", "optimizer.lr must be a finite number, not nan"),
        ("optimizer.lr=inf", "optimizer.lr must be a finite number, not inf"),
        ("schedule.steps=" + "9" * 30, "schedule.steps must be at most 1,000,000,000,000,000, not 999"),
        ("schedule.steps=" + "9" * 5000, r"schedule.steps must be a whole number, not '9+.*\(5,000 characters\)'"),
        ("batch.workers=100000", "batch.workers must be at most 1024 processes"),
        ("q" * 5000 + "=1", r"unknown field 'q+.*\(5,000 characters\)'; see"),
        ("start.model=", "start.model must be a text or none, not ''"),
        ("model.cache_budgets=[4", r"model.cache_budgets must be a whole number or a list .* or none, not '\[4'"),
        ("model.cache_budgets=4,5]", r"model.cache_budgets must be .*, not '4,5\]'"),
        ("model.cache_budgets=[4,]", r"model.cache_budgets must be .*, not '\[4,\]'"),
        ("model.cache_budgets=[[4]]", r"model.cache_budgets must be .*, not '\[\[4\]\]'"),
        ("model.attention=[standard", r"model.attention must be .*, not '\[standard'"),
        ("model.attention=standard,,selective", r"model.attention must be .*, not 'standard,,selective'"),
        ("optimizer.beta2=1", r"optimizer.beta2 must be in \[0, 1\), not 1.0"),
        ("evaluation.target=2", r"evaluation.target must be in \(0, 1\], not 2.0"),
        ("seed=5000000000", "seed must be below 2"),
    ],
)
def test_what_does_not_fit_gets_one_clear_line(assignment, message):
    with pytest.raises(SelattnError, match=message) as error:
        override(tiny(), [assignment])
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_brackets_of_a_text_are_its_own():
    run = override(find_run("text-small-standard"), ["data.separator=[SEP]", "data.source=my [new] text.txt"])
    assert (run.data.separator, run.data.source) == ("[SEP]", "my [new] text.txt")


def test_nothing_of_a_run_can_be_changed():
    run = tiny()
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.seed = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.optimizer.lr = 1
    with pytest.raises(TypeError):
        run.model["hidden_size"] = 1
    settings = {"hidden_size": 8}
    run = tiny(model=settings)
    settings["hidden_size"] = 16
    assert run.model["hidden_size"] == 8


def test_every_field_can_be_set_to_what_it_is():
    """So that no field has a type which the command line cannot write."""
    run = find_run("c4-d12-memory")
    config = model_config(run)
    for name in fields(run):
        value = run
        if name.startswith("model."):
            value = getattr(config, name.removeprefix("model."))
        else:
            for part in name.split("."):
                value = getattr(value, part)
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        override(run, [f"{name}={text}"])


def test_a_model_to_start_from_brings_its_own_architecture():
    """Wherever in the command line it stands; what the user sets beside it stays."""
    run = override(find_run("text-small-memory"), ["model.head_dim=32", "start.model=somewhere"])
    assert run.model == {"attention": ["selective"], "memory_epsilon": 0.1, "head_dim": 32}


@pytest.mark.parametrize(
    "name", ["text-small-memory", "copy-standard", "parity-standard", "variable-assignment-standard"]
)
def test_every_field_is_described_where_it_is_defined(name):
    run = find_run(name)
    about = descriptions(run)
    assert set(fields(run)) <= set(about)
    assert all(len(text) > 5 and "\n" not in text for text in about.values())
    assert about["optimizer.lr"] == "the peak of the learning rate."
    assert about["shrink.first"].endswith("so that nothing is evicted at first.")  # two lines of the docstring
