"""What pictures are drawn from: packed arrays come back, tokens are as written, and numbers are the model's."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import selattn
from lab.tasks import VariableAssignment
from selattn.errors import SelattnError
from selattn.evaluation.traces import (
    MeanF,
    Trace,
    average,
    given_text,
    leaving,
    pack_rising,
    pack_shares,
    pack_steps,
    read,
    trace,
    unpack,
    unpack_steps,
)
from selattn.models.loading import load
from tests.views.traces import random_trace

TEXT = "A short text: naïve 🙂, <script>alert('no')</script>\nand שלום."


@given(
    st.integers(1, 9), st.integers(0, 99), st.sampled_from([1 / 64, 1 / 8, 1.0]), st.floats(-3, 3), st.floats(0, 1e6)
)
def test_F_comes_back_to_half_a_step_and_S_to_one(size, seed, step, low, high):
    rng = np.random.default_rng(seed)
    F = np.tril(rng.uniform(low, low + high, (size, size)).cumsum(0))
    packed = json.loads(json.dumps(pack_rising(F, step)))
    assert packed["step"] >= step
    found = unpack(packed)
    slack = 1e-6 * np.abs(F).max()  # of fp32
    assert np.abs(found - F).max() <= packed["step"] / 2 + slack
    assert np.abs(np.diff(found, axis=0) - np.diff(F, axis=0))[np.tri(size, dtype=bool)[1:]].max(initial=0) <= (
        packed["step"] + 2 * slack
    )


@given(st.integers(1, 9), st.integers(0, 99))
def test_weights_and_steps_come_back(size, seed):
    rng = np.random.default_rng(seed)
    weights = np.tril(rng.random((size, size)))
    assert np.abs(unpack(pack_shares(weights)) - weights).max() <= 1 / 510 + 1e-7
    steps = rng.integers(0, 2**16, (3, size))
    assert np.array_equal(unpack_steps(pack_steps(steps), 3, size), steps)


@pytest.mark.parametrize("data", ["", "no base64!", "AAAA"])
def test_damaged_pictures_are_refused(data):
    with pytest.raises(SelattnError, match="make the record again"):
        unpack({**pack_shares(np.eye(3)), "data": data})


def test_what_is_no_square_or_no_number_is_refused():
    for values in (np.zeros((2, 3)), np.full((2, 2), np.nan)):
        with pytest.raises(SelattnError, match="square of finite numbers"):
            pack_rising(values, 1.0)


def test_tokens_are_as_people_write_them():
    words = read(load("zoo:memory"), TEXT)
    assert words.tokens[0] == "<s>"
    assert "".join(words.tokens[1:]) == TEXT
    assert "🙂" in words.tokens
    assert len(words.ids) == len(words.tokens)


@pytest.mark.parametrize("name", ["zoo:memory", "zoo:variable-assignment-selective", "zoo:standard"])
def test_numbers_are_the_models(name):
    text = given_text("sample" if "assignment" in name else "paper", load(name))
    first = "selective" if load(name).description.selects else "tova"
    found = trace(name, text, runs=[(first, 6), ("h2o", [3, 9, 4])], limit=20)
    model = load(name).model
    ids = torch.tensor([found.ids])
    assert found.size == 20
    assert found.cut_from > 20
    with torch.no_grad():
        whole = model(ids, output_f=True, output_attentions=True)
    for layer in range(found.layers):
        F = whole.f[layer]
        expected = np.zeros((20, 20)) if F is None else F[0, 0].numpy()
        assert np.abs(found.F(layer) - expected).max() <= found.step / 2 + 1e-4
        assert np.abs(found.S(layer)[:-1] - np.tril(np.diff(expected, axis=0), 0)).max() <= found.step + 1e-4
        assert np.abs(found.weights(layer) - whole.attentions[layer][0].mean(0).numpy()).max() <= 1 / 510 + 1e-6

    for number, (policy, budgets) in enumerate(((first, [6] * 3), ("h2o", [3, 9, 4]))):
        cache = model.model.new_cache(budgets, policy)
        how = {"cache_budgets": budgets, "cache_policy": policy}
        for i in range(20):
            with torch.no_grad():
                model(ids[:, i : i + 1], past_key_values=cache, **how)
            for layer, slots in enumerate(cache.layers):
                held = set(slots.position.flatten().tolist()) - {-1}
                assert held == set(np.flatnonzero(found.kept(layer, number)[i]))


def test_a_record_is_all_that_is_needed(tmp_path):
    made = random_trace()
    made.save(tmp_path / "trace.json")
    again = Trace.load(tmp_path / "trace.json")
    assert again == made
    assert np.array_equal(again.kept(1, 1), made.kept(1, 1))
    record = json.loads((tmp_path / "trace.json").read_text())
    record["trace"]["tokens"].pop()
    with pytest.raises(SelattnError, match="no whole record"):
        Trace.from_json(record)
    with pytest.raises(SelattnError, match="no whole record"):
        MeanF.from_json(record)


def test_a_mean_is_the_mean():
    model = load("zoo:variable-assignment-selective").model
    rows = [VariableAssignment(3, 100, 16).dataset(seed, 1)[0]["input_ids"] for seed in (0, 1)]
    packed = average(model, rows)
    with torch.no_grad():
        each = [model(row[None], output_f=True).f[1][0, 0].numpy() for row in rows]
    assert np.abs(unpack(packed[1]) - (each[0] + each[1]) / 2).max() <= 1 / 64 + 1e-3


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path):
    model = "zoo:variable-assignment-selective"
    with pytest.raises(SelattnError, match="knows only certain words"):
        trace(model, "Z= hello")
    assert trace(model, "Z= 1 Y= 2").tokens == ["<BOS>", "Z=", " 1", " Y=", " 2"]
    with pytest.raises(SelattnError, match=r"has no sample\.txt"):
        given_text("sample", load("zoo:memory"))
    with pytest.raises(SelattnError, match="empty"):
        trace("zoo:memory", " ")
    with pytest.raises(SelattnError, match="at least 2 tokens"):
        trace(model, "Z= 1", limit=1)
    with pytest.raises(SelattnError, match="no layer 3"):
        random_trace().F(3)
    with pytest.raises(SelattnError, match="0 runs with budgets"):
        random_trace(runs=False).kept(0)


def test_it_takes_a_loaded_model_and_is_public():
    model = load("zoo:variable-assignment-selective").model
    assert selattn.trace is trace
    assert trace(model, "Z= 1").tokens == ["<BOS>", "Z=", " 1"]
    assert leaving(model, torch.tensor([[0, 1, 5]]), "none", 2)["policy"] == "none"
