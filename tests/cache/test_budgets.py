"""Budgets are immutable data with a JSON form; what is wrong with them is said in one line."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selattn.cache import Budgets, SelectiveCache
from selattn.errors import SelattnError

PAPER = (8, 48, 8, 8, 24, 8, 168, 16, 8, 64, 8, 8)
number = st.integers(2, 10**6)
anything = st.one_of(number, st.lists(number, min_size=1, max_size=30).map(tuple)).map(Budgets)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("budgets")


@given(anything)
def test_json_round_trip(folder, budgets):
    assert Budgets.of(json.loads(json.dumps(budgets.to_json()))) == budgets
    budgets.save(folder / "budgets.json", model="some model", threshold=2.5)
    assert Budgets.load(folder / "budgets.json") == budgets
    assert json.loads((folder / "budgets.json").read_text())["model"] == "some model"
    assert [path.name for path in folder.iterdir()] == ["budgets.json"]


def test_a_bare_number_or_list_is_a_file_too(tmp_path):
    for text, want in (("64", Budgets(64)), ("[8, 48]", Budgets((8, 48))), ('{"budgets": 9}', Budgets(9))):
        (tmp_path / "x.json").write_text(text)
        assert Budgets.load(str(tmp_path / "x.json")) == want


def test_a_failed_save_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "budgets.json"
    Budgets(8).save(path)
    with pytest.raises(TypeError):
        Budgets(16).save(path, note=object())
    assert Budgets.load(path) == Budgets(8)
    assert list(tmp_path.iterdir()) == [path]


def test_immutable_and_equal_by_value():
    given_list = [8, 48]
    budgets = Budgets.of(given_list)
    given_list[0] = 9
    assert budgets == Budgets((8, 48)) == Budgets([8, 48])
    assert hash(budgets) == hash(Budgets([8, 48]))
    assert budgets.tokens == tuple(budgets) == (8, 48)
    with pytest.raises(dataclasses.FrozenInstanceError):
        budgets.tokens = 5
    assert Budgets.of(None) is None
    assert Budgets.of(budgets) is budgets


def test_memory_factor_is_the_papers():
    assert Budgets(PAPER).memory_factor(12, 512) == pytest.approx(16.34, abs=0.005)
    assert Budgets(512).memory_factor(12, 512) == 1
    assert Budgets(9999).memory_factor(12, 512) == 1  # more than the context is never held
    assert Budgets(128).memory_factor(12, 512) == 4


def test_scaled_to_another_context():
    assert Budgets(PAPER).scaled(4) == Budgets(tuple(4 * k for k in PAPER))
    assert Budgets(PAPER).scaled(4).memory_factor(12, 2048) == Budgets(PAPER).memory_factor(12, 512)
    assert Budgets(10).scaled(0.5) == Budgets(5)
    assert Budgets((2, 100)).scaled(0.1) == Budgets((2, 10))  # never below the smallest


@given(anything, st.floats(0.01, 100))
def test_scaling_keeps_the_form(budgets, factor):
    scaled = budgets.scaled(factor)
    assert type(scaled.tokens) is type(budgets.tokens)
    for before, after in zip(budgets, scaled, strict=True):
        assert after == 2 or abs(after - before * factor) <= 0.5


def test_one_number_is_for_all_layers():
    assert Budgets(7).for_layers(3) == (7, 7, 7)
    assert Budgets((2, 3)).for_layers(2) == (2, 3)
    assert [layer.budget for layer in SelectiveCache(3, [4, 5, 6]).layers] == [4, 5, 6]
    assert [layer.budget for layer in SelectiveCache(2, 4).layers] == [4, 4]
    assert [layer.budget for layer in SelectiveCache(2).layers] == [None, None]


def test_budgets_that_do_not_fit_the_model():
    with pytest.raises(SelattnError, match=r"^2 budgets do not fit a model of 3 layers: give one for each$"):
        SelectiveCache(3, [4, 5])


@pytest.mark.parametrize("value", [1, 0, -8, True, 8.0, "8", [8, 1], [8, 2.5], [8, True], [[8]], (8, None), {8}])
def test_a_budget_is_a_whole_number_of_at_least_2(value):
    for make in (Budgets, Budgets.of):
        with pytest.raises(SelattnError, match=r"^a budget must be a whole number of at least 2 tokens, not [^\n]+$"):
            make(value)


@pytest.mark.parametrize("value", [2**31, 10**30, [8, 10**9999], -(10**9999)], ids=["2", "10", "list", "minus"])
def test_absurd_sizes_are_one_line(value):
    with pytest.raises(SelattnError, match=r"^a budget must be at most 2,147,483,647 tokens: leave it out [^\n]+$"):
        Budgets.of(value)


@pytest.mark.parametrize("value", [[], ()])
def test_no_budgets_at_all(value):
    with pytest.raises(SelattnError, match=r"^budgets are an empty list: give one number, or one for each layer$"):
        Budgets.of(value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read the budgets file 'PATH': No such file or directory"),
        (b"[8, 48", "the budgets file 'PATH' is not JSON: write a list such as [8, 48, 8]"),
        (b"", "the budgets file 'PATH' is not JSON: write a list such as [8, 48, 8]"),
        (b"\xff\xfe", "the budgets file 'PATH' is not JSON: write a list such as [8, 48, 8]"),
        (b'{"budget": 8}', "the budgets file 'PATH' has no number or list under \"budgets\""),
        (b'"8"', "the budgets file 'PATH' has no number or list under \"budgets\""),
        (b"8.5", "the budgets file 'PATH' has no number or list under \"budgets\""),
        (b"[8, 1]", "a budget must be a whole number of at least 2 tokens, not 1"),
        (b"[8, 8.0]", "a budget must be a whole number of at least 2 tokens, not 8.0"),
        (b"9" * 9999, "the budgets file 'PATH' is not JSON: write a list such as [8, 48, 8]"),
        (b"[" * 99_999, "the budgets file 'PATH' is not JSON: write a list such as [8, 48, 8]"),
        (
            b"[8, 99999999999999999999]",
            "a budget must be at most 2,147,483,647 tokens: leave it out to keep everything",
        ),
        (b"true", "a budget must be a whole number of at least 2 tokens, not True"),
        (b"[]", "budgets are an empty list: give one number, or one for each layer"),
    ],
)
def test_a_file_that_is_wrong(tmp_path, content, message):
    path = tmp_path / "budgets.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SelattnError) as caught:
        Budgets.load(path)
    assert str(caught.value) == message.replace("PATH", str(path))


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "budgets.json", tmp_path):
        with pytest.raises(SelattnError, match=r"^cannot write [^\n]+: [A-Z][a-z ]+$"):
            Budgets(8).save(place)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
