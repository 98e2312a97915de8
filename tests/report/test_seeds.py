"""Several seeds in one record: means, and the number of each."""

import json
from pathlib import Path

import pytest

from selattn.errors import SelattnError
from selattn.report.seeds import merge_curves, merge_searches, training_seed

MEASURED = {
    "command": "selattn ...",
    "date": "today",
    "seed": 0,
    "machine": {"processor": "fast"},
    "versions": {"torch": "2"},
}


def curve(name, losses):
    return {"name": name, "points": [{"kv_size": size, "loss": {"text": loss}} for size, loss in losses.items()]}


def record(baseline, *curves, **changes):
    base = {"name": "standard", "loss": {"text": baseline}}
    return {
        **MEASURED,
        "context": 64,
        "texts": {"text": {"rows": 3}},
        "skip": 2,
        "baseline": base,
        "curves": [*curves],
        **changes,
    }


def search(model, budgets, factor, pruned, **changes):
    return {
        **MEASURED,
        **{name: name for name in ("policy", "procedure", "text", "rows")},
        "model": model,
        "budgets": budgets,
        "memory_factor": factor,
        "at_floor": False,
        "path": [1, 2, 3],
        "search_limit": 2.5,
        "search_loss": 2.4,
        "report": {"unpruned": 2.0, "pruned": pruned},
        **changes,
    }


def test_curves_become_their_mean():
    found = merge_curves(
        {
            "a": record(2.5, curve("x", {64: 2.0, 16: 2.5, 8: 2.9}), curve("y", {32: 3.0})),
            "b": record(2.9, curve("x", {64: 2.4, 16: 2.8}), curve("y", {32: 2.9, 16: 3.3})),
        }
    )
    here = {"training_seed": None, **{name: MEASURED[name] for name in ("command", "date", "machine")}}
    assert found["records"] == [{"record": "a", **here}, {"record": "b", **here}]
    assert found["baseline"] == {
        "name": "standard",
        "loss": {"text": pytest.approx(2.7)},
        "losses": {"text": [2.5, 2.9]},
    }
    x, y = found["curves"]
    assert [(point["kv_size"], point["losses"]["text"]) for point in x["points"]] == [
        (64, [2.0, 2.4]),
        (16, [2.5, 2.8]),
    ]
    assert [point["loss"]["text"] for point in x["points"]] == pytest.approx([2.2, 2.65])
    reached = {"memory_factor": 4.0, "memory_factors": [4.0, 4.0], "at_least": True}
    assert x["at_the_baselines_loss"]["text"] == reached
    reached = {"memory_factor": None, "memory_factors": [None, 2.0], "at_least": False}
    assert y["at_the_baselines_loss"]["text"] == reached


def test_factors_are_read_off_the_points():
    """Whatever a record says of them; also where a smaller size than the others have decides."""
    stale = {"at_the_baselines_loss": {"text": None}}
    whole = {**curve("x", {64: 2.5 + 1e-7, 32: 2.6}), **stale}
    further = {**curve("x", {64: 2.5, 32: 2.5, 8: 2.7}), **stale}
    (x,) = merge_curves({"a": record(2.5, whole), "b": record(2.5, further)})["curves"]
    reached = {"memory_factor": pytest.approx(1.5), "memory_factors": pytest.approx([1.0, 2.0]), "at_least": False}
    assert x["at_the_baselines_loss"]["text"] == reached


def test_without_a_baseline_there_are_no_factors():
    one = {**record(2.5, curve("x", {64: 1.0})), "baseline": None}
    found = merge_curves({"a": one, "b": one})
    assert (found["baseline"], found["curves"][0]["at_the_baselines_loss"]) == (None, {})


def test_a_curve_of_one_seed_stays_what_it_is():
    local = curve("local", {32: 2.1})
    both = [curve("x", {64: loss}) for loss in (2.0, 2.2)]
    found = merge_curves({"a": record(2.5, both[0]), "b": record(2.7, both[1], local)})
    x, y = found["curves"]
    assert [(c["name"], c["seeds"]) for c in (x, y)] == [("x", 2), ("local", 1)]
    assert y["points"] == [{"kv_size": 32, "loss": {"text": 2.1}, "losses": {"text": [2.1]}}]


def test_searches_become_a_table():
    found = merge_searches({"a": search("m0", [8, 4], 5.0, 2.25), "b": search("m1", [4, 4], 8.0, 2.75)})
    assert (found["memory_factor"], found["report"]) == (6.5, {"unpruned": 2.0, "pruned": 2.5})
    assert [row["budgets"] for row in found["searches"]] == [[8, 4], [4, 4]]
    assert "path" not in found["searches"][0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"context": 32}, "a and b have different contexts"),
        ({"texts": {"text": {"rows": 4}}}, "different texts"),
        ({"curves": [curve("x", {32: 1.0})]}, "'x' have no size in common"),
        ({"baseline": None}, "different baselines"),
    ],
)
def test_what_differs_is_told(changes, says):
    one = record(2.5, curve("x", {64: 1.0}))
    with pytest.raises(SelattnError, match=says):
        merge_curves({"a": one, "b": {**one, **changes}})


def test_searches_that_differ_are_told():
    with pytest.raises(SelattnError, match="a and b have different policies"):
        merge_searches({"a": search("m", [4], 2.0, 2.1), "b": search("m", [4], 2.0, 2.1, policy="h2o")})


def of(*models):
    return [{"model": model, "policy": None, "search": None} for model in models]


def test_a_seed_is_the_one_of_the_training():
    """Not of the rows, which are the same for all; from what the record says, or from the name of a study's run."""
    said = [{**curve("x", {64: 1.0}), "of": [{"model": "any", "training_seed": seed}]} for seed in (3, 5)]
    found = merge_curves({name: record(2.5, each) for name, each in zip("ab", said, strict=True)})
    assert [source["training_seed"] for source in found["records"]] == [3, 5]
    assert found["curves"][0]["training_seeds"] == [3, 5]
    named = {**curve("x", {64: 1.0}), "of": of("runs/lm/zoo-memory-seed4", "runs/lm/zoo-memory-seed4/model", "local")}
    assert training_seed(record(2.5, named)) == 4
    assert training_seed(record(2.5, {**named, "of": of("a-seed1", "b-seed2")})) is None
    assert training_seed(record(2.5, {**named, "of": of("seed1", "a-seed1-long")})) is None
    assert training_seed(search("runs/a-seed2", [4], 2.0, 2.1)) == 2
    assert training_seed(search("runs/a-seed2", [4], 2.0, 2.1, training_seed=7)) == 7
    rows = merge_searches({"a": search("m-seed0", [4], 2.0, 2.1), "b": search("m-seed1", [4], 2.0, 2.1)})["searches"]
    assert [row["training_seed"] for row in rows] == [0, 1]


def test_one_seed_does_not_count_twice():
    one = record(2.5, {**curve("x", {64: 1.0}), "of": of("m-seed0")})
    with pytest.raises(SelattnError, match="a and b are both of models trained with seed 0: give each seed once"):
        merge_curves({"a": one, "b": one})
    assert merge_curves({"a": one, "b": {**one, "seed": 1}})["curves"][0]["seeds"] == 2  # measured on other rows


@pytest.mark.parametrize("name", ["tradeoff.json", "prune/memory.json", "prune/selective.json"])
def test_published_seeds_have_their_names(name):
    published = json.loads((Path(__file__).parents[2] / "results" / name).read_text())
    assert published["seed"] == [0, 1, 2]
    assert [source["training_seed"] for source in published["records"]] == [0, 1, 2]


def without(whole, *names):
    return {name: value for name, value in whole.items() if name not in names}


CURVES, SEARCH = record(2.5, curve("x", {64: 1.0})), search("m", [4], 2.0, 2.1)


@pytest.mark.parametrize(
    "broken",
    [
        {"versions": {}, "curves": []},
        *(without(CURVES, name) for name in CURVES if name != "versions"),
        *({**CURVES, name: None} for name in ("curves", "texts")),
        {**CURVES, "texts": {"another": {"rows": 3}}},
        {**CURVES, "baseline": {}},
        {**CURVES, "baseline": {"name": "standard", "loss": {"text": "2.5"}}},
        {**CURVES, "curves": [{"name": "x", "points": []}]},
        {**CURVES, "curves": [curve("x", {0: 1.0})]},
    ],
)
def test_curves_that_are_not_whole_are_told(broken):
    with pytest.raises(SelattnError, match=r"^b is not a whole record of 'selattn eval --curve'"):
        merge_curves({"a": CURVES, "b": broken})


@pytest.mark.parametrize(
    "broken",
    [
        {"versions": {}, "budgets": [1]},
        *(without(SEARCH, name) for name in SEARCH if name not in ("versions", "path")),
        *({**SEARCH, name: None} for name in ("report", "budgets", "memory_factor")),
        {**SEARCH, "memory_factor": "2.0"},
        {**SEARCH, "report": {"unpruned": 2.0, "pruned": "2.1"}},
    ],
)
def test_searches_that_are_not_whole_are_told(broken):
    with pytest.raises(SelattnError, match=r"^b is not a whole record of 'selattn prune'"):
        merge_searches({"a": SEARCH, "b": broken})
