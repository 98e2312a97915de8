"""`selattn eval --record`: interrupted anywhere it goes on, and takes only what it would have measured itself."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

import selattn.evaluation
from selattn.cli.main import main
from selattn.evaluation import curve, decoding, tasks
from tests.evaluation import questions
from tests.evaluation.folders import model_folder, text_file

ROOT = Path(__file__).parents[2]
RECORD, PARTS = Path("record.json"), Path("record.json.parts.jsonl")
pytestmark = pytest.mark.filterwarnings("ignore")  # what lm-eval and its dependencies warn of is not ours

TEXT = ["--data", "text.txt", "--validation", "0.9", "--rows", "6"]
TASKS = ["--tasks", "piqa,arc_easy", "--data-dir", "questions"]
ALL = ["eval", "model", "model@6", *TEXT, "--long", *TASKS, "--speed", "--record", str(RECORD)]
CURVE = ["eval", "model@sizes:h2o", "model@sizes:tova", "local", *TEXT, "--curve", "--sizes", "64", "8"]
CURVE += ["--baseline", "model", "--record", str(RECORD)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("eval")
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


PLACES = {"text": (selattn.evaluation, "log_perplexity"), "task": (tasks, "run_task")}
PLACES |= {"decoding": (decoding, "measure_decoding"), "point": (curve, "measure")}


@pytest.fixture
def measured(monkeypatch):
    """What is measured, by kind; after `at most` so many of them comes Ctrl-C."""
    counts = Counter({"at most": 999})

    def watch(kind, real):
        def measure(*args, **how):
            if counts.total() - counts["at most"] == counts["at most"]:
                raise KeyboardInterrupt
            counts[kind] += 1
            return real(*args, **how)

        return measure

    for kind, (home, name) in PLACES.items():
        monkeypatch.setattr(home, name, watch(kind, getattr(home, name)))
    return counts


def begin(counts, at_most=999):
    counts.clear()
    counts["at most"] = at_most


def kinds(counts):
    return {kind: count for kind, count in counts.items() if kind != "at most"}


def content():
    """The record but for what the clock says."""
    record = json.loads(RECORD.read_text())
    for one in record.get("models", []):
        for what_the_clock_says in ("tokens_per_second", "quartiles"):
            one.get("decoding", {}).pop(what_the_clock_says, None)
    return {name: value for name, value in record.items() if name not in ("date", "command")}


@pytest.mark.parametrize(
    ("words", "number"),
    [(ALL, {"text": 4, "task": 4, "decoding": 2}), (CURVE, {"point": 6})],
    ids=["side by side", "curve"],
)
def test_interrupted_anywhere_it_ends_the_same(measured, words, number, capsys):
    """Ctrl-C in every part but the first, and a line that was cut off: the record of one go, every part once."""
    assert main(words) == 0
    want, total = content(), sum(number.values())
    assert kinds(measured) == number
    assert not PARTS.exists()
    RECORD.unlink()
    for done in range(1, total):
        begin(measured, 1)
        capsys.readouterr()
        assert main(words) == 130
        said = capsys.readouterr()
        assert said.err.splitlines()[-1] == "stopped; the same command goes on with what is missing"
        assert (f"{done - 1} of {total} parts were measured before" in said.out) == (done > 1)
        assert len(PARTS.read_text().splitlines()) == done
        assert not RECORD.exists()
        with PARTS.open("a") as file:
            file.write('{"key": {"part"')
    begin(measured)
    assert main(words) == 0
    assert sum(kinds(measured).values()) == 1
    assert content() == want
    assert not PARTS.exists()


def test_models_are_not_loaded_for_what_is_known(measured, monkeypatch):
    for words in (ALL, CURVE):
        with monkeypatch.context() as patch:
            patch.setattr("selattn.utils.records.write_record", interrupt)
            assert main(words) == 130
        begin(measured)
        with monkeypatch.context() as patch:
            patch.setattr("selattn.models.weights.SelectiveForCausalLM.from_pretrained", interrupt)
            assert main(words) == 0
        assert kinds(measured) == {}


@pytest.mark.parametrize(("words", "last"), [(ALL, "_side_by_side.show"), (CURVE, "_curve.show_files")])
def test_everything_is_written_before_it_is_shown(monkeypatch, words, last):
    """Whoever reads what is shown may have gone: `selattn eval ... | head`."""
    monkeypatch.setattr(f"selattn.cli.{last}", interrupt)
    assert main(words) == 130
    assert content()
    assert not PARTS.exists()
    assert RECORD.with_suffix(".png").exists() == (words is CURVE)


def interrupt(*args, **how):
    raise KeyboardInterrupt


def changed_weights():
    model = selattn.SelectiveForCausalLM.from_pretrained("model")
    model.lm_head.weight.data[0] += 1
    model.save_pretrained("model")


def changed_text():
    Path("text.txt").write_text(Path("text.txt").read_text().replace("cat", "dog"))


def changed_question():
    file = Path("questions/piqa_validation.jsonl")
    file.write_text(file.read_text().replace("Run far", "Run home"))


def changed_tokenizer():
    settings = json.loads(Path("model/tokenizer_config.json").read_text())
    Path("model/tokenizer_config.json").write_text(json.dumps({**settings, "note": 1}))


ONE = ["eval", "model", *TEXT, *TASKS, "--speed", "--record", str(RECORD)]
POINTS = ["eval", "model@sizes:h2o", *TEXT, "--curve", "--sizes", "64", "8", "--record", str(RECORD)]


@pytest.mark.parametrize(
    ("words", "changed", "anew"),
    [
        (ONE, [], {}),
        (ONE, ["--rows", "5"], {"text": 1}),
        (ONE, ["--skip", "1"], {"text": 1}),
        (ONE, ["--no-eos"], {"text": 1}),
        (ONE, ["--layout", "packed"], {"text": 1}),
        (ONE, ["--validation", "0.8"], {"text": 1}),
        (ONE, ["--context", "48"], {"text": 1, "decoding": 1}),
        (ONE, ["--batch", "4"], {"text": 1, "task": 2}),
        (ONE, ["--seed", "1"], {"text": 1, "task": 2, "decoding": 1}),
        (ONE, ["--limit", "1"], {"task": 2}),
        (ONE, ["--tasks", "piqa", "hellaswag"], {"task": 1}),
        (ONE, ["--long"], {"text": 1}),
        (ONE, changed_weights, {"text": 1, "task": 2, "decoding": 1}),
        (ONE, changed_text, {"text": 1}),
        (ONE, changed_question, {"task": 1}),
        (ONE, changed_tokenizer, {"task": 2}),
        (["eval", "model@6", *ONE[2:]], "model@7", {"text": 1, "task": 2, "decoding": 1}),
        (["eval", "model@6", *ONE[2:]], "model@6:h2o", {"text": 1, "task": 2, "decoding": 1}),
        (POINTS, [], {}),
        (POINTS, ["--sizes", "64", "16", "8"], {"point": 1}),
        (POINTS, ["--baseline", "local"], {"point": 1}),
        (POINTS, ["--rows", "5"], {"point": 2}),
        (POINTS, ["--skip", "1"], {"point": 2}),
        (POINTS, ["--batch", "4"], {"point": 2}),
        (POINTS, ["--context", "60", "--sizes", "60", "8"], {"point": 2}),
        (POINTS, ["--long"], {"point": 2}),
        (POINTS, changed_weights, {"point": 2}),
        (POINTS, changed_text, {"point": 2}),
        (POINTS, "model@sizes:tova", {"point": 2}),
    ],
)
def test_what_depends_on_a_change_is_measured_anew(measured, monkeypatch, words, changed, anew):
    """And nothing else. The change is a setting, another model, or something done to a file."""
    with monkeypatch.context() as patch:
        patch.setattr("selattn.utils.records.write_record", interrupt)
        assert main(words) == 130
    begin(measured)
    if callable(changed):
        changed()
    elif isinstance(changed, str):
        words = ["eval", changed, *words[2:]]
    else:
        words = [*words, *changed]
    assert main(words) == 0
    assert kinds(measured) == anew


def test_two_processes_agree_on_what_is_known(measured):
    """Interrupted as one process and finished by two: they wait for each other nowhere."""
    words = ["eval", "model", "model@6", *TEXT, "--long", "--speed", "--record", str(RECORD)]
    assert main(words) == 0
    want = content()
    begin(measured, 4)
    assert main(words) == 130
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "selattn"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads()), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*launch, *words], env=environment, check=True, capture_output=True, text=True, timeout=200)
    assert done.stdout.count("4 of 6 parts were measured before") == 1
    assert content() == want
    assert not PARTS.exists()


def test_without_a_record_nothing_is_kept(measured, capsys):
    words = ALL[:-2]
    before = set(Path().iterdir())
    begin(measured, 2)
    assert main(words) == 130
    assert capsys.readouterr().err.endswith("\nselattn: interrupted\n")
    assert set(Path().iterdir()) == before


def test_bad_input_leaves_nothing(capsys):
    before = set(Path().iterdir())
    assert main([*ALL, "--skip", "99"]) == 2
    assert "after the first 99 were asked for" in capsys.readouterr().err
    assert set(Path().iterdir()) == before


def test_the_record_counts_parameters_as_the_model_has_them():
    assert main(["eval", "model", "--speed", "--record", str(RECORD)]) == 0
    model = selattn.SelectiveForCausalLM.from_pretrained("model")
    assert content()["models"][0]["parameters"] == sum(parameter.numel() for parameter in model.parameters())
