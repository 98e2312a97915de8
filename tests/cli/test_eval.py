"""`selattn eval`: models side by side, a record, the trade-off, and one line for each thing that can be wrong."""

import json
from pathlib import Path

import pytest

from selattn.cache import Budgets
from selattn.cli.main import main
from selattn.data import Reading
from selattn.evaluation import log_perplexity, make_batches
from selattn.evaluation.compare import Comparison
from selattn.evaluation.subjects import Subject
from selattn.evaluation.tasks import find_tasks, make_scorer, run_task
from selattn.evaluation.text import Text
from selattn.models.loading import load
from selattn.pruning import searched
from selattn.utils.records import read_body
from tests.evaluation import questions
from tests.evaluation.folders import model_folder, text_file


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    path = tmp_path_factory.mktemp("eval")
    model_folder(path / "model", max_position_embeddings=64)
    model_folder(path / "local", max_position_embeddings=64, attention=["local:8", "standard"], seed=1)
    model_folder(path / "second", max_position_embeddings=64, seed=1)
    model_folder(path / "other", size=290)
    text_file(path / "text.txt", documents=30)
    questions.write(path / "questions")
    (path / "broken").mkdir()
    (path / "broken" / "piqa.jsonl").write_text('{"goal": "a", "sol1": "b"\n')
    return path


@pytest.fixture(autouse=True)
def _own_cache(here, monkeypatch):
    monkeypatch.setenv("SELATTN_CACHE", str(here / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(here)


def loss(model, rows=6, skip=0, text="text.txt"):
    subject = Subject.parse(model)
    source = Text(text, reading=Reading(validation=0.9))
    chosen = source.rows(subject.loaded.tokenizer, 64).take(rows, skip)
    return log_perplexity(subject.loaded.model, make_batches(chosen, 8), subject.budgets, subject.policy)


TEXT = ["--data", "text.txt", "--validation", "0.9", "--rows", "6"]


def test_several_models_side_by_side(capsys):
    models = ["model", "model@6,6", "model@6:h2o", "model@999", "local"]
    assert main(["eval", *models, *TEXT, "--skip", "3", "--speed", "--record", "record.json"]) == 0
    out = capsys.readouterr().out
    record = json.loads(Path("record.json").read_text())
    assert [one["model"] for one in record["models"]] == models
    assert {"command", "versions", "seed", "machine"} <= record.keys()
    for one in record["models"]:
        assert one["text"]["text.txt"]["loss"] == pytest.approx(loss(one["model"], skip=3), rel=1e-6)
        assert f"{one['text']['text.txt']['loss']:.4f}" in out
        low, high = one["decoding"]["quartiles"]
        assert 0 < low <= one["decoding"]["tokens_per_second"] <= high
    losses = [one["text"]["text.txt"]["loss"] for one in record["models"]]
    assert losses[0] == pytest.approx(losses[3], rel=1e-6)
    assert losses[0] != pytest.approx(losses[1], rel=1e-4)
    assert record["models"][1]["kv"]["memory_factor"] == 64 / 6
    assert record["models"][4]["kv"]["held"] == [8, 64]
    assert record["models"][1]["decoding"]["cache_bytes"] < record["models"][0]["decoding"]["cache_bytes"]


@pytest.mark.filterwarnings("ignore")
def test_tasks_from_local_files(capsys):
    command = ["eval", "model", "model@5", "--tasks", "piqa,arc_easy", "--data-dir", "questions"]
    assert main([*command, "--record", "tasks.json"]) == 0
    models = read_body("tasks.json", Comparison).models
    files = find_tasks(["piqa", "arc_easy"], "questions")
    for one in models:
        subject = Subject.parse(one.model)
        scorer = make_scorer(subject.loaded.model, subject.loaded.tokenizer.hf, 8, subject.budgets, subject.policy)
        assert one.tasks == {name: run_task(scorer, name, file) for name, file in files.items()}
    assert "arc_easy (2)" in capsys.readouterr().out


def test_the_trade_off(capsys):
    search = ["--report-rows", "4", "--until", "floor", "--step", "8", "--lazy", "--out", "found"]
    assert main(["prune", "model", *TEXT, *search]) == 0
    curves = ["searched=model@found", "model@sizes:window+4", "local"]
    how = ["--curve", "--sizes", "64", "32", "8", "--baseline", "local", "--record", "curve.json"]
    assert main(["eval", *curves, *TEXT, "--skip", "6", "--long", *how]) == 0
    record = json.loads(Path("curve.json").read_text())
    assert Path("curve.png").read_bytes()[:4] == b"\x89PNG"
    searched, window, local = record["curves"]
    assert [curve["name"] for curve in record["curves"]] == ["searched", "model@sizes:window+4", "local"]
    assert [point["kv_size"] for point in window["points"]] == [64, 32, 8]
    assert [point["kv_size"] for point in searched["points"]] == [64, 32, 8]
    assert [point["held"] for point in local["points"]] == [[8, 64]]
    assert set(record["texts"]) == {"text.txt", "text.txt, long"}
    Budgets(tuple(searched["points"][1]["budgets"])).save("middle.json")
    assert searched["points"][1]["loss"]["text.txt"] == pytest.approx(loss("model@middle.json", skip=6), rel=1e-6)
    assert window["points"][2]["loss"]["text.txt"] == pytest.approx(loss("model@8:window+4", skip=6), rel=1e-6)
    assert record["baseline"]["loss"]["text.txt"] == pytest.approx(loss("local", skip=6), rel=1e-6)
    assert [curve["of"] for curve in record["curves"]] == [
        [{"model": "model", "training_seed": None, "policy": "selective", "search": "found"}],
        [{"model": "model", "training_seed": None, "policy": "window+4", "search": None}],
        [{"model": "local", "training_seed": None, "policy": None, "search": None}],
    ]
    for curve in record["curves"]:
        equal = curve["at_the_baselines_loss"]["text.txt"]
        losses = [point["loss"]["text.txt"] for point in curve["points"]]
        limit = record["baseline"]["loss"]["text.txt"]
        assert (equal is not None) == (losses[0] <= limit)
        if equal is not None:
            assert equal["at_least"] == all(loss <= limit for loss in losses)


@pytest.mark.parametrize("search", [["--long"], ["--layout", "packed", "--seed", "3"], ["--context", "16"]])
def test_what_a_search_has_seen_is_left_out(search):
    """The rows of the search in a folder, whatever rows it had and whatever rows the evaluation has."""
    data = ["--data", "text.txt", "--validation", "0.9", "--rows", "6"]
    out = "-".join(["seen", *search]).replace("--", "")
    how = ["--report-rows", "2", "--step", "4", "--until", "factor=1.1", "--out", out]
    assert main(["prune", "model", *data, *how, *search]) == 0
    assert main(["eval", "model", *data[:-2], "--skip", out, "--record", f"{out}.json"]) == 0
    record = json.loads(Path(f"{out}.json").read_text())
    assert record["settings"]["skip"] == out
    every = Text("text.txt", reading=Reading(validation=0.9)).rows(load("model").tokenizer, 64)
    seen = searched(out)
    assert record["models"][0]["text"]["text.txt"]["rows"] == len(every.take(None, seen)) < len(every)


def test_curves_of_one_name_are_one_curve():
    words = ["--curve", *TEXT, "--baseline", "base=model", "--record", "named.json"]
    assert main(["eval", "as it is=local", "as it is=model", *words]) == 0
    record = json.loads(Path("named.json").read_text())
    (curve,) = record["curves"]
    assert [point["kv_size"] for point in curve["points"]] == [36, 64]
    assert [part["model"] for part in curve["of"]] == ["local", "model"]
    assert record["baseline"]["name"] == "base"


def test_a_record_is_extended(capsys):
    """As if all curves had been measured at once; what does not fit is refused, and the record stays as it was."""
    base = ["--curve", *TEXT, "--baseline", "base=model"]
    assert main(["eval", "one=local", "two=second", *base, "--record", "at-once.json"]) == 0
    assert main(["eval", "one=local", *base, "--record", "extended.json"]) == 0
    first = Path("extended.json").read_text()
    more = ["eval", "two=second", "--curve", "--extend", "extended.json", "--record", "extended.json"]
    for words, says in (
        ([*more, *TEXT, "--skip", "1"], "extended.json was measured with the skip 0"),
        ([*more, *TEXT, "--baseline", "model"], "leave --baseline out"),
        (["eval", "one=model", *more[2:], *TEXT], "has a curve 'one' already"),
        (["eval", "model", *TEXT, "--extend", "extended.json"], "--extend would change nothing: without --curve"),
    ):
        assert main(words) == 2
        assert says in capsys.readouterr().err
        assert Path("extended.json").read_text() == first
    half = {name: value for name, value in json.loads(first).items() if name != "baseline"}
    Path("half.json").write_text(json.dumps(half))
    assert main(["eval", "two=second", "--curve", "--extend", "half.json", *TEXT]) == 2
    assert "half.json lacks 'baseline': it was written by" in capsys.readouterr().err
    assert main([*more, *TEXT]) == 0
    got, want, before = (
        json.loads(x) for x in (Path("extended.json").read_text(), Path("at-once.json").read_text(), first)
    )
    assert got["curves"] == want["curves"]
    assert got["baseline"] == want["baseline"]
    assert got["extends"]["command"] == before["command"]


def test_a_name_is_shown_as_it_is(capsys):
    """Not as rich's markup."""
    assert main(["eval", "[/a] [bold]b=model", "--curve", *TEXT]) == 0
    assert " [/a] [bold]b " in capsys.readouterr().out
