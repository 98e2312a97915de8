"""Training with budgets in force, and with budgets that shrink on the way."""

import itertools
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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
