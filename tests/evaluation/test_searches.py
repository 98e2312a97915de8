"""The path of a search in its folder."""

import json
from dataclasses import asdict

import pytest

from selattn.errors import SelattnError
from selattn.pruning.folder import PATH, read_path
from selattn.pruning.search import Step, Work

STEP = Step(0, None, (8, 8), 2.5, 1.0, {}, Work(2.0, 0.0))


def test_what_was_written_is_read(tmp_path):
    second = Step(1, 1, (8, 6), 2.75, 16 / 14, {0: 3.0, 1: 2.75}, Work(5.0, 1.5))
    (tmp_path / PATH).write_text("".join(json.dumps(asdict(step)) + "\n" for step in (STEP, second)))
    found = read_path(tmp_path)
    assert found == [STEP, second]
    assert [step.work for step in found] == [STEP.work, second.work]


@pytest.mark.parametrize(
    "change",
    [
        {"budgets": [0, 0]},  # the compiled library would trust them
        {"budgets": 8},
        {"tried": []},
        {"loss": "x"},
        {"loss": None},
        {"work": {}},
        {"work": []},
        {"iteration": 1},
    ],
    ids=str,
)
def test_damage_is_told(tmp_path, change):
    (tmp_path / PATH).write_text(json.dumps({**asdict(STEP), **change}) + "\n")
    with pytest.raises(SelattnError, match=r"path\.jsonl is damaged.*: delete the folder and search again"):
        read_path(tmp_path)


def test_a_folder_in_its_place_is_told(tmp_path):
    (tmp_path / PATH).mkdir()
    with pytest.raises(SelattnError, match=r"cannot read .*path\.jsonl: Is a directory"):
        read_path(tmp_path)
