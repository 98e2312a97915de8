"""Training with budgets in force, and with budgets that shrink on the way."""

import dataclasses
import itertools
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.tasks import VariableAssignment
from selattn.cli.main import main
from selattn.cli.settings import override
from selattn.errors import SelattnError
from selattn.models import SelectiveForCausalLM
from selattn.training import train
from selattn.training.config import Checkpoints, Evaluation, Optimizer, Schedule, Shrink, Start
from selattn.training.datasets import prepare
from selattn.training.model import Course, model_config
from tests.interrupted import Interrupt
from tests.training.tiny import MODEL, log, same_run, tiny, weights


def short(**changes):
    """Four steps without dropout."""
    return tiny(**{"model": MODEL, "schedule": Schedule(steps=4, warmup=1), "log_every": 1} | changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "run"
    train(short(), path)
    return path


@pytest.mark.parametrize("policy", ["selective", "window+4", "h2o"])
def test_training_after_pruning_takes_the_steps_of_a_plain_loop_with_the_same_budgets(trained, tmp_path, policy):
    """Loss and gradients are those of the pruned forward, and the model that is saved has the budgets in its config."""
    budgets = {"cache_budgets": [6, 5], "cache_policy": policy}
    run = short(model=budgets, start=Start(str(trained)), optimizer=Optimizer(lr=1e-3, weight_decay=0.0))
    train(run, tmp_path / "run")

    model = SelectiveForCausalLM.from_pretrained(trained / "model").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    data, losses, plain = prepare(run).train, [], []
    for step, rate in enumerate([0.0, 1e-3, 1e-3 * 0.75, 1e-3 * 0.25]):  # one step of warm-up, then the cosine
        optimizer.param_groups[0]["lr"] = rate
        batch = torch.utils.data.default_collate([data[8 * step + i] for i in range(8)])
        plain.append(model(**batch).lm_loss.item())
        outputs = model(**batch, **budgets)
        outputs.loss.backward()
        losses.append(outputs.lm_loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert losses != pytest.approx(plain, rel=1e-4), "the budgets must change something, or nothing is tested"
    records = [record for record in log(tmp_path / "run") if "loss" in record]
    assert [record["lm_loss"] for record in records] == pytest.approx(losses, rel=1e-4)
    assert [record["cache_budgets"] for record in records] == [[6, 5]] * 4
    ours = weights(tmp_path / "run")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, ours[name], rtol=1e-4, atol=1e-5)
    saved = SelectiveForCausalLM.from_pretrained(tmp_path / "run" / "model").config
    assert (list(saved.budgets), saved.cache_policy) == ([6, 5], policy)


def shrinking(**changes):
    """Weights that stay what they are, so that only the budgets can change a loss."""
    settings = {
        "model": {"cache_budgets": [3, 2]},
        "optimizer": Optimizer(lr=0.0),
        "schedule": Schedule(steps=6, warmup=0),
        "evaluation": Evaluation(1, 10, 4),
        "checkpoints": Checkpoints(every=2, keep=3),
        "shrink": Shrink(steps=4),
    }
    return short(**settings | changes)


def test_budgets_shrink_from_the_context_to_those_of_the_model(trained, tmp_path):
    """In training, in evaluation, in the log and in what is saved."""
    run = shrinking(start=Start(str(trained)))
    train(run, tmp_path / "run")
    expected = [[9, 9], [7, 7], [6, 5], [4, 3], [3, 2], [3, 2], [3, 2]]
    training = [record for record in log(tmp_path / "run") if "loss" in record]
    evaluations = [record for record in log(tmp_path / "run") if "evaluation" in record]
    assert [record["cache_budgets"] for record in training] == expected[:-1]
    assert [record["cache_budgets"] for record in evaluations] == expected[1:]

    model = SelectiveForCausalLM.from_pretrained(trained / "model").eval()
    data = prepare(run)
    losses = []
    for step, record in enumerate(training):
        batch = torch.utils.data.default_collate([data.train[8 * step + i] for i in range(8)])
        with torch.no_grad():
            pruned = model(**batch, use_cache=False, cache_budgets=expected[step])
            losses.append(abs(pruned.lm_loss.item() - model(**batch, use_cache=False).lm_loss.item()))
        assert record["lm_loss"] == pytest.approx(pruned.lm_loss.item(), rel=1e-5)
    assert losses[0] < 1e-6 < losses[-1], "the context size drops nothing, the final budgets do"
    batch = torch.utils.data.default_collate([data.validation["validation"][i] for i in range(10)])
    for record, budgets in zip(evaluations, expected[1:], strict=True):
        with torch.no_grad():
            loss = model(**batch, use_cache=False, cache_budgets=budgets).lm_loss.item()
        assert record["evaluation"]["validation"]["loss"] == pytest.approx(loss, rel=1e-5)

    for saved, budgets in (("checkpoint-2", [6, 5]), ("checkpoint-4", [3, 2]), ("model", [3, 2])):
        assert json.loads((tmp_path / "run" / saved / "config.json").read_text())["cache_budgets"] == budgets


def test_a_run_that_ends_on_the_way_says_what_was_in_force(trained, tmp_path):
    run = shrinking(start=Start(str(trained)), schedule=Schedule(steps=2, warmup=0))
    train(run, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "model" / "config.json").read_text())["cache_budgets"] == [6, 5]


@pytest.mark.parametrize("at", [2, 5])
def test_shrinking_budgets_resume_where_they_were(trained, tmp_path, at):
    run = tiny(model=MODEL | {"cache_budgets": 2, "hidden_dropout": 0.1}, shrink=Shrink(steps=8, every=2))
    train(run, tmp_path / "whole")
    assert train(run, tmp_path / "run", progress=Interrupt(at + 1)).interrupted
    train(run, tmp_path / "run", resume=True)
    same_run(tmp_path / "whole", tmp_path / "run")
    assert [record["cache_budgets"] for record in log(tmp_path / "run") if "loss" in record] == [
        [7, 7], [5, 5], [2, 2], [2, 2],
    ]  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(2, 40), st.integers(0, 40)), min_size=2, max_size=2),
    st.integers(1, 30),
    st.integers(1, 7),
)
def test_budgets_only_shrink_and_arrive(budgets, steps, every):
    last, first = [k for k, _ in budgets], [k + more for k, more in budgets]
    run = tiny(model=MODEL | {"cache_budgets": last}, shrink=Shrink(steps, every, tuple(first)))
    course = Course(run, model_config(run))
    seen = [course.in_force(step)["cache_budgets"] for step in range(steps + 2)]
    assert (seen[0], seen[-1]) == (first, last)
    assert course.at(steps) == {}
    for step, (before, after) in enumerate(itertools.pairwise(seen), 1):
        assert all(a <= b for a, b in zip(after, before, strict=True))
        assert after == before or step % every == 0 or step == steps


def test_what_cannot_shrink_is_one_line(tmp_path):
    wrong = {
        "shrink.steps has nothing to shrink to: set model.cache_budgets": short(shrink=Shrink(3)),
        r"shrink\.first 4 is below model\.cache_budgets \(6, 5\)": short(
            model=MODEL | {"cache_budgets": [6, 5]}, shrink=Shrink(3, first=4)
        ),
        "3 budgets do not fit a model of 2 layers": short(
            model=MODEL | {"cache_budgets": [6, 5]}, shrink=Shrink(3, first=(9, 9, 9))
        ),
        "2 layers": short(model=MODEL | {"cache_budgets": [6, 5, 4]}),
        "shrink.first has no effect without shrink.steps": short(
            model=MODEL | {"cache_budgets": [6, 5]}, shrink=Shrink(first=8)
        ),
    }
    for message, run in wrong.items():
        with pytest.raises(SelattnError, match=message):
            train(run, tmp_path / "run")
        assert not (tmp_path / "run").exists()
    with pytest.raises(SelattnError, match=r"shrink\.every must be at least 1, not 0"):
        Shrink(every=0)


@pytest.mark.parametrize(
    ("text", "value"), [("8", 8), ("[8]", [8]), ("[8,4]", [8, 4]), ("8, 4", [8, 4]), ("none", None)]
)
def test_budgets_on_the_command_line(text, value):
    run = override(tiny(), [f"model.cache_budgets={text}", f"shrink.first={text}"])
    assert run.model["cache_budgets"] == value
    assert run.shrink.first == (tuple(value) if isinstance(value, list) else value)
    assert json.loads(json.dumps(run.to_dict())) == run.to_dict()


def test_from_the_command_line(trained, tmp_path, monkeypatch, capsys):
    """The whole of it: a trained model goes on with budgets that shrink, and resuming needs the same command."""
    monkeypatch.chdir(tmp_path)
    task = dataclasses.asdict(VariableAssignment(variables=2, values=5, assignments=3))
    command = [
        *(
            "train",
            "lab.runs:variable-assignment-small-selective",
            f"start.model={trained}",
            "model.cache_budgets=[4,3]",
        ),
        *("model.cache_policy=selective", "shrink.steps=2", "schedule.steps=3", "schedule.warmup=0", "log_every=1"),
        *(f"data.{name}={value}" for name, value in task.items()),
        *("batch.size=4", "evaluation.rows=4", "--out", "run"),
    ]
    assert main(command) == 0
    assert [record["cache_budgets"] for record in log(tmp_path / "run") if "loss" in record] == [[9, 9], [6, 6], [4, 3]]
    assert main([*command, "--resume"]) == 0
    assert main([*command, "shrink.every=2", "--resume"]) == 2
    assert "shrink.every is 1 there and 2 here" in capsys.readouterr().err
    settings = json.loads((tmp_path / "run" / "run.json").read_text())
    del settings["shrink"]["every"]  # a run from before there was such a setting
    (tmp_path / "run" / "run.json").write_text(json.dumps(settings))
    assert main([*command, "--resume"]) == 0
