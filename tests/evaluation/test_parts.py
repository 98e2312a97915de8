"""Parts of an evaluation: what was measured is not measured again, wherever the process was stopped."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selattn.errors import SelattnError
from selattn.evaluation import Team
from selattn.utils import journal as parts
from selattn.utils.journal import open_parts

KEYS = st.fixed_dictionaries({"model": st.sampled_from("ab"), "budgets": st.none() | st.lists(st.integers(2, 3))})


def keep(record, keys, measure=lambda: 0.1):
    with open_parts(record, Team()) as opened:
        return [opened.get(key, Any, measure) for key in keys]


def file_of(record):
    return record.with_name(record.name + ".parts.jsonl")


@given(st.lists(KEYS, min_size=1, max_size=6), st.data())
def test_stopped_anywhere_it_ends_the_same(tmp_path_factory, keys, data):
    """After some parts, and with the file cut off anywhere: every line that is whole counts, once."""
    record = tmp_path_factory.mktemp("parts") / "record.json"
    numbers = iter(range(100))
    done = data.draw(st.integers(0, len(keys)))
    first = keep(record, keys[:done], lambda: next(numbers))
    kept = 0
    if done:
        whole = file_of(record).read_bytes()
        cut = whole[: data.draw(st.integers(0, len(whole)))]
        file_of(record).write_bytes(cut)
        kept = cut.count(b"\n")
    assert first == list(range(done))
    with open_parts(record, Team()) as opened:
        assert opened.known(keys) == kept
    again = keep(record, keys, lambda: next(numbers))
    assert next(numbers) == done + len(keys) - kept
    assert len(set(again)) == len(keys)  # also those of one key: each is a measurement of its own
    for place, key in enumerate(keys):  # those of one key come back in the order in which they were measured
        earlier = keys[:place].count(key)
        if earlier < keys[:kept].count(key):
            assert again[place] == [first[i] for i in range(kept) if keys[i] == key][earlier]
    assert keep(record, keys, lambda: next(numbers)) == again


def test_another_version_or_machine_measures_anew(tmp_path, monkeypatch):
    record = tmp_path / "record.json"
    keep(record, [{"a": 1}])
    for name, value in (("versions", {"torch": "1"}), ("machine", {"threads": 99})):
        with monkeypatch.context() as patch:
            patch.setattr(parts, name, lambda value=value: value)
            assert keep(record, [{"a": 1}], lambda: "anew") == ["anew"]
    assert keep(record, [{"a": 1}], lambda: "anew") == [0.1]  # the first is still there


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"{", b"[1]", b'{"key": {"a": 1}}', b"3", b""])
def test_a_damaged_line_is_none(tmp_path, damage):
    record = tmp_path / "record.json"
    keep(record, [{"a": 1}])
    file_of(record).write_bytes(damage + b"\n" + file_of(record).read_bytes())
    assert keep(record, [{"a": 1}, {"a": 2}], lambda: "anew") == [0.1, "anew"]


def test_nothing_is_left_behind(tmp_path):
    record = tmp_path / "new" / "record.json"
    with open_parts(record, Team()):
        assert file_of(record).exists()
    assert list(tmp_path.iterdir()) == []
    with open_parts(record, Team()) as opened:
        opened.get({"a": 1}, int, lambda: 1)
        opened.remove()
    assert list(tmp_path.iterdir()) == []
    assert keep(None, [{"a": 1}]) == [0.1]


def test_one_evaluation_for_a_record_at_a_time(tmp_path):
    record = tmp_path / "record.json"
    with open_parts(record, Team()), pytest.raises(SelattnError, match="another process is measuring for"):
        keep(record, [])
    assert keep(record, [{"a": 1}]) == [0.1]


def test_who_waits_finds_what_the_other_has_measured(tmp_path):
    record, waits = tmp_path / "record.json", []
    with contextlib.ExitStack() as other:
        first = other.enter_context(open_parts(record, Team()))
        first.get({"a": 1}, int, lambda: 1)

        def wait():
            waits.append(True)
            other.close()

        with open_parts(record, Team(), wait) as second:
            assert second.get({"a": 1}, int, lambda: pytest.fail("measured again")) == 1
    assert waits == [True]


def test_who_has_ended_does_not_touch_the_file_of_the_next(tmp_path):
    """One has written its record and is on its way out, a second measures, a third comes, which must not be let in."""
    record = tmp_path / "record.json"
    with open_parts(record, Team()) as first:
        first.get({"a": 1}, int, lambda: 1)
        first.remove()
        with pytest.raises(SelattnError, match="another process is measuring for"):
            keep(record, [])
    with open_parts(record, Team()) as second:
        assert file_of(record).exists()
        with pytest.raises(SelattnError, match="another process is measuring for"):
            keep(record, [])
        assert second.get({"a": 2}, int, lambda: 2) == 2
    assert keep(record, [{"a": 2}]) == [2]
    assert sorted(path.name for path in tmp_path.iterdir()) == [file_of(record).name]


def test_a_value_of_another_kind_is_measured_anew(tmp_path):
    record = tmp_path / "record.json"
    keep(record, [{"a": 1}], lambda: "a text")
    with open_parts(record, Team()) as opened:
        assert opened.get({"a": 1}, float, lambda: 0.5) == 0.5
        assert opened.get({"a": 1}, float, lambda: 0.25) == 0.25
