"""Several seeds in one record: means, and the number of each."""

import json
from pathlib import Path

import pytest

from selattn.errors import SelattnError
from selattn.evaluation.results import Tradeoff
from selattn.utils.records import as_body
from selattn.utils.typed import to_json
from selattn.views.seeds import merge_curves, merge_searches, merge_seeds, seed_of_tradeoff

MEASURED = {
    "command": "selattn ...",
    "date": "today",
    "seed": 0,
    "machine": {"processor": "fast"},
    "versions": {"torch": "2"},
}


def point(size, loss):
    layers = {"held": [size], "read": [size], "budgets": [size]}
    return {"kv_size": size, "memory_factor": 64 / size if size else 0, **layers, "loss": {"text": loss}}


def curve(name, losses):
    points = [point(size, loss) for size, loss in losses.items()]
    return {"name": name, "of": [], "points": points, "at_the_baselines_loss": {}}


def record(baseline, *curves, **changes):
    base = {"name": "standard", **point(64, baseline)}
    return {
        **MEASURED,
        "context": 64,
        "texts": {"text": {"rows": 3, "tokens": 9}},
        "skip": 2,
        "baseline": base,
        "curves": [*curves],
        **changes,
    }


def search(model, budgets, factor, pruned, **changes):
    return {
        **MEASURED,
        "policy": "selective",
        "procedure": {"context": 64, "step": 8, "floor": None, "lazy": True},
        "text": {"source": "text.txt"},
        "rows": {"search": 3, "report": 4},
        "tokens": {"search": 30, "report": 40},
        "until": ["floor"],
        "iteration": 1,
        "model": model,
        "budgets": budgets,
        "memory_factor": factor,
        "at_floor": False,
        "path": [],
        "search_limit": 2.5,
        "search_loss": 2.4,
        "report": {"unpruned": 2.0, "pruned": pruned},
        **changes,
    }


def test_curves_become_their_mean():
    found = to_json(
        merge_curves(
            {
                "a": record(2.5, curve("x", {64: 2.0, 16: 2.5, 8: 2.9}), curve("y", {32: 3.0})),
                "b": record(2.9, curve("x", {64: 2.4, 16: 2.8}), curve("y", {32: 2.9, 16: 3.3})),
            }
        )
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
    (x,) = to_json(merge_curves({"a": record(2.5, whole), "b": record(2.5, further)}))["curves"]
    reached = {"memory_factor": pytest.approx(1.5), "memory_factors": pytest.approx([1.0, 2.0]), "at_least": False}
    assert x["at_the_baselines_loss"]["text"] == reached


def test_without_a_baseline_there_are_no_factors():
    one = {**record(2.5, curve("x", {64: 1.0})), "baseline": None}
    found = merge_curves({"a": one, "b": one})
    assert (found.baseline, found.curves[0].at_the_baselines_loss) == (None, {})


def test_a_curve_of_one_seed_stays_what_it_is():
    local = curve("local", {32: 2.1})
    both = [curve("x", {64: loss}) for loss in (2.0, 2.2)]
    found = merge_curves({"a": record(2.5, both[0]), "b": record(2.7, both[1], local)})
    x, y = found.curves
    assert [(c.name, c.seeds) for c in (x, y)] == [("x", 2), ("local", 1)]
    assert to_json(y.points) == [{"kv_size": 32, "loss": {"text": 2.1}, "losses": {"text": [2.1]}}]


def test_searches_become_a_table():
    found = merge_searches({"a": search("m0", [8, 4], 5.0, 2.25), "b": search("m1", [4, 4], 8.0, 2.75)})
    assert (found.memory_factor, found.report) == (6.5, {"unpruned": 2.0, "pruned": 2.5})
    assert [row.budgets for row in found.searches] == [(8, 4), (4, 4)]
    assert "path" not in to_json(found.searches[0])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"context": 32}, "a and b have different contexts"),
        ({"texts": {"text": {"rows": 4, "tokens": 9}}}, "different texts"),
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
    assert [source.training_seed for source in found.records] == [3, 5]
    assert found.curves[0].training_seeds == [3, 5]
    named = {**curve("x", {64: 1.0}), "of": of("runs/lm/zoo-memory-seed4", "runs/lm/zoo-memory-seed4/model", "local")}
    assert seed_of_tradeoff(as_body(record(2.5, named), Tradeoff)) == 4
    assert seed_of_tradeoff(as_body(record(2.5, {**named, "of": of("a-seed1", "b-seed2")}), Tradeoff)) is None
    assert seed_of_tradeoff(as_body(record(2.5, {**named, "of": of("seed1", "a-seed1-long")}), Tradeoff)) is None
    one, other = search("runs/a-seed2", [4], 2.0, 2.1), search("runs/a-seed2", [4], 2.0, 2.1, training_seed=7)
    assert [row.training_seed for row in merge_searches({"a": one, "b": other}).searches] == [2, 7]


def test_one_seed_does_not_count_twice():
    one = record(2.5, {**curve("x", {64: 1.0}), "of": of("m-seed0")})
    with pytest.raises(SelattnError, match="a and b are both of models trained with seed 0: give each seed once"):
        merge_curves({"a": one, "b": one})
    assert merge_curves({"a": one, "b": {**one, "seed": 1}}).curves[0].seeds == 2  # measured on other rows


@pytest.mark.parametrize("name", ["tradeoff", "prune/memory", "prune/selective"])
def test_published_seeds_are_those_of_their_records(name):
    """Which earlier versions wrote: what is made of them now is what is published."""
    results = Path(__file__).parents[2] / "results"
    published = json.loads((results / f"{name}.json").read_text())
    assert published["seed"] == [0, 1, 2]
    found = to_json(merge_seeds([results / f"{name}-seed{seed}.json" for seed in (0, 1, 2)]))
    assert [source["training_seed"] for source in found["records"]] == [0, 1, 2]
    for merged in (found, published):
        for row in (*merged.pop("records"), *merged.get("searches", ())):
            row.pop("record")  # where it lay
    assert {field: published[field] for field in found} == found


def without(whole, *names):
    return {name: value for name, value in whole.items() if name not in names}


CURVES, SEARCH = record(2.5, curve("x", {64: 1.0})), search("m", [4], 2.0, 2.1)


@pytest.mark.parametrize(
    "broken",
    [
        {"versions": {}, "curves": []},
        *(without(CURVES, name) for name in CURVES if name != "versions"),
        *({**CURVES, name: None} for name in ("curves", "texts")),
        {**CURVES, "texts": {"another": {"rows": 3, "tokens": 9}}},
        {**CURVES, "baseline": {}},
        {**CURVES, "baseline": {"name": "standard", **point(64, "2.5")}},
        {**CURVES, "curves": [{**curve("x", {}), "points": []}]},
        {**CURVES, "curves": [curve("x", {0: 1.0})]},
    ],
)
def test_curves_that_are_not_whole_are_told(broken):
    with pytest.raises(SelattnError, match=r"^b( lacks |: )"):
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
    with pytest.raises(SelattnError, match=r"^b( lacks |: )"):
        merge_searches({"a": SEARCH, "b": broken})
