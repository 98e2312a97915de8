"""`selattn eval --record`: interrupted anywhere it goes on, and takes only what it would have measured itself."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

import selattn
from selattn.cli.main import main
from selattn.evaluation import compare, tradeoff
from tests import forked
from tests.evaluation import questions
from tests.evaluation.folders import model_folder, text_file

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


PLACES = {"text": (compare, "log_perplexity"), "task": (compare, "run_task")}
PLACES |= {"decoding": (compare, "measure_decoding"), "point": (tradeoff, "measure")}


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
        assert said.err.splitlines()[-1] == "stopped; the same command resumes it"
        assert (f"{done - 1} of {total} parts were measured before" in said.err) == (done > 1)
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
            patch.setattr("selattn.utils.journal.write_record", interrupt)
            assert main(words) == 130
        begin(measured)
        with monkeypatch.context() as patch:
            patch.setattr("selattn.models.causal_lm.SelectiveForCausalLM.from_pretrained", interrupt)
            assert main(words) == 0
        assert kinds(measured) == {}


@pytest.mark.parametrize(("words", "last"), [(ALL, "show_files"), (CURVE, "show_files")])
def test_everything_is_written_before_it_is_shown(monkeypatch, words, last):
    """Whoever reads what is shown may have gone: `selattn eval ... | head`."""
    monkeypatch.setattr(f"selattn.cli.eval.{last}", interrupt)
    assert main(words) == 130
    assert content()
    assert not PARTS.exists()
    assert RECORD.with_suffix(".png").exists() == (words is CURVE)


def interrupt(*args, **how):
    raise KeyboardInterrupt


def test_two_processes_agree_on_what_is_known(measured):
    """Interrupted as one process and finished by two: they wait for each other nowhere."""
    words = ["eval", "model", "model@6", *TEXT, "--long", "--speed", "--record", str(RECORD)]
    assert main(words) == 0
    want = content()
    begin(measured, 4)
    assert main(words) == 130
    done = forked.run(["-m", "selattn", *words], count=2)
    assert done.returncodes == [0, 0], done.stderr
    assert done.stderr.count("4 of 6 parts were measured before") == 1
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
