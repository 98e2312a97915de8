"""What a measurement depends on: a change of one thing measures anew what depends on it, and nothing else.

A plan is a function of settings and files, so nothing is measured here. That what has the same key is not measured
again is tested in test_parts.py, and with commands in tests/cli/test_eval_resume.py.
"""

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

import selattn
from selattn.cli.eval import parse_curve
from selattn.data import Reading
from selattn.evaluation import compare, tradeoff
from selattn.evaluation.subjects import Subject
from selattn.evaluation.tasks import find_tasks
from selattn.evaluation.text import Text
from tests.evaluation import questions
from tests.evaluation.folders import model_folder, text_file

TEXT = Text("text.txt", reading=Reading(validation=0.9))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans")
    model_folder(path / "model", max_position_embeddings=64)
    model_folder(path / "local", max_position_embeddings=64, attention=["local:8", "standard"], seed=1)
    text_file(path / "text.txt", documents=30)
    questions.write(path / "questions")
    return path


@pytest.fixture(autouse=True)
def _here(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path / "here")


def request(**changes):
    tasks = changes.pop("tasks", ["piqa", "arc_easy"])
    wanted = compare.Request({"text": TEXT}, find_tasks(tasks, "questions"), speed=True, rows=6)
    return dataclasses.replace(wanted, **changes)


def keys_of_models(model="model", **changes):
    return compare.make_plan(Subject.parse(model), request(**changes)).keys


def keys_of_points(curve="model@sizes:h2o", baseline=None, **changes):
    how = {"texts": {"text": TEXT}, "sizes": [64, 8], "rows": 6, **changes}
    return tradeoff.make_plan([parse_curve(curve)], baseline and parse_curve(baseline), **how).keys


def anew(before, after):
    """What has to be measured, by kind, if all of `before` has been."""
    left = list(before)
    counts = Counter()
    for key in after:
        if key in left:
            left.remove(key)
        else:
            counts[key["part"]] += 1
    return dict(counts)


LONG = {"text": TEXT, "text, long": dataclasses.replace(TEXT, long=True)}


@pytest.mark.parametrize(
    ("changes", "measured"),
    [
        ({}, {}),
        ({"rows": 5}, {"text": 1}),
        ({"skip": 1}, {"text": 1}),
        ({"texts": {"text": dataclasses.replace(TEXT, eos=False)}}, {"text": 1}),
        ({"texts": {"text": dataclasses.replace(TEXT, layout="packed")}}, {"text": 1}),
        ({"texts": {"text": dataclasses.replace(TEXT, reading=Reading(validation=0.8))}}, {"text": 1}),
        ({"texts": {"text": dataclasses.replace(TEXT, seed=1)}}, {"text": 1}),
        ({"texts": LONG}, {"text": 1}),
        ({"context": 48}, {"text": 1, "decoding": 1}),
        ({"batch": 4}, {"text": 1, "task": 2}),
        ({"seed": 1}, {"task": 2, "decoding": 1}),
        ({"limit": 1}, {"task": 2}),
        ({"tasks": ["piqa", "hellaswag"]}, {"task": 1}),
        ({"speed": False}, {}),
        ({"model": "model@6"}, {"text": 1, "task": 2, "decoding": 1}),
    ],
    ids=str,
)
def test_of_a_model(changes, measured):
    assert anew(keys_of_models(), keys_of_models(**changes)) == measured


@pytest.mark.parametrize("other", ["model@7", "model@6:h2o"])
def test_of_its_budgets_and_its_policy(other):
    found = anew(keys_of_models("model@6"), keys_of_models(other))
    assert found == {"text": 1, "task": 2, "decoding": 1}


@pytest.mark.parametrize(
    ("changes", "points"),
    [
        ({}, 0),
        ({"sizes": [64, 16, 8]}, 1),
        ({"baseline": "local"}, 1),
        ({"rows": 5}, 2),
        ({"skip": 1}, 2),
        ({"batch": 4}, 2),
        ({"context": 60, "sizes": [60, 8]}, 2),
        ({"texts": LONG}, 2),
        ({"curve": "model@sizes:tova"}, 2),
    ],
    ids=str,
)
def test_of_a_curve(changes, points):
    assert anew(keys_of_points(), keys_of_points(**changes)) == ({"point": points} if points else {})


def weights():
    model = selattn.SelectiveForCausalLM.from_pretrained("model")
    model.lm_head.weight.data[0] += 1
    model.save_pretrained("model")


def text():
    Path("text.txt").write_text(Path("text.txt").read_text().replace("cat", "dog"))


def question():
    file = Path("questions/piqa_validation.jsonl")
    file.write_text(file.read_text().replace("Run far", "Run home"))


def tokenizer():
    """Capital letters are no longer kept apart; the text has none."""
    found = json.loads(Path("model/tokenizer.json").read_text())
    found["normalizer"]["normalizers"].append({"type": "Lowercase"})
    Path("model/tokenizer.json").write_text(json.dumps(found))


def note():
    settings = json.loads(Path("model/tokenizer_config.json").read_text())
    Path("model/tokenizer_config.json").write_text(json.dumps({**settings, "note": 1}))


@pytest.mark.parametrize(
    ("change", "measured", "points"),
    [
        (weights, {"text": 1, "task": 2, "decoding": 1}, {"point": 2}),
        (text, {"text": 1}, {"point": 2}),
        (question, {"task": 1}, {}),
        (tokenizer, {"task": 2}, {}),
        (note, {}, {}),
    ],
)
def test_of_files(change, measured, points):
    before, curve = keys_of_models(), keys_of_points()
    change()
    assert anew(before, keys_of_models()) == measured
    assert anew(curve, keys_of_points()) == points
