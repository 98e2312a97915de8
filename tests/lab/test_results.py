"""The page of results is what the records say, and a record that is run again gives its numbers."""

import dataclasses
import json
from pathlib import Path

import pytest

from lab import experiments
from lab.__main__ import main as lab
from lab.engine import run
from lab.engine.experiment import with_seeds
from lab.engine.records import Cell, Claim, Measured, Reproduction
from lab.engine.run import again
from lab.results import conclude, earlier_records, results_page
from selattn.errors import SelattnError
from selattn.utils.records import read_body, write_record
from tests.evaluation.folders import text_file
from tests.lab.tiny import TINY, only, tiny_run

ROOT = Path(__file__).parents[2]
RECORDS = sorted((ROOT / "results/reproduce/laptop").glob("*.json"))


def test_the_page_is_what_the_records_say():
    """`python -m lab results` writes it."""
    assert (ROOT / "docs/results.md").read_text() == results_page(ROOT / "results/reproduce")


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.stem)
def test_the_conclusions_of_a_record_are_those_of_the_code(file):
    """`python -m lab results` draws them anew."""
    record = read_body(file, Reproduction)
    assert experiments.EXPERIMENTS[record.experiment].concluded(record) == record


def test_conclusions_are_drawn_anew_and_measurements_stay(tmp_path):
    before = json.loads((ROOT / "results/reproduce/laptop/course.json").read_text())
    old = tmp_path / "course.json"
    old.write_text(json.dumps({**before, "claims": before["claims"][:1]}))
    assert conclude(old)
    assert json.loads(old.read_text()) == before
    assert not conclude(old)


def test_every_experiment_stands_on_the_page():
    page = (ROOT / "docs/results.md").read_text()
    assert [name for name in experiments.EXPERIMENTS if f"`{name}`" not in page and f"### {name}\n" not in page] == []


def test_a_record_changes_the_page(tmp_path):
    before = results_page(tmp_path / "reproduce")
    claim = Claim("It is faster.", (0.11, 0.12, 0.1), "seconds saved", paper=0.2)
    record = Reproduction("positions", "Table 9", "it", "laptop", "a text", (0, 1, 2), (), (claim,), (), {}, ())
    write_record(tmp_path / "reproduce/laptop/positions.json", record, [0, 1, 2])
    page = results_page(tmp_path / "reproduce")
    assert "| It is faster. | 0.110 (0.100 to 0.120, 3 seeds): seconds saved | 0.2 | holds |" in page
    assert "| [positions](#positions) | Table 9 | a text | holds |" in page
    assert "### positions\n\nTable 9: it.\n" in page
    assert "- `positions`" in before
    assert "- `positions`" not in page


def test_verdicts_are_counted_at_a_glance(tmp_path):
    values = (0.1, 0.2, -0.1, 0.0)
    claims = tuple(Claim(f"Claim {number}.", (value,), "a number") for number, value in enumerate(values))
    record = Reproduction("positions", "Table 9", "it", "laptop", "a text", (0,), (), claims, (), {}, ())
    write_record(tmp_path / "reproduce/laptop/positions.json", record, [0])
    said = "one run: as claimed (2), against the claim, no difference"
    assert f"| a text | {said} |" in results_page(tmp_path / "reproduce")


def test_a_long_table_is_folded(tmp_path):
    def page(rows):
        cells = tuple(Cell(f"row {row}", "loss", (1.0,)) for row in range(rows))
        record = Reproduction("positions", "Table 9", "it", "laptop", "a text", (0,), cells, (), (), {}, ())
        write_record(tmp_path / "reproduce/laptop/positions.json", record, [0])
        return results_page(tmp_path / "reproduce")

    assert "<details>" not in page(16)
    assert "<details><summary>All 17 rows</summary>\n\n|  | loss |" in page(17)


def test_earlier_records_are_those_of_the_files():
    found = {record.experiment: record for record in earlier_records(ROOT / "results/reproduce")}
    study = json.loads((ROOT / "results/lm_comparison.json").read_text())
    wanted = sorted(run["evaluation"]["validation"]["loss"] for run in study["runs"] if run["run"] == "zoo-selective")
    assert sorted(found["course-learned"].cell("3.1M tokens", "selective").values) == wanted
    assert found["efficiency"].earlier == "results/tradeoff.json"
    study = json.loads((ROOT / "results/t5.json").read_text())
    wanted = sorted(
        run["evaluation"]["validation"]["loss"] for run in study["runs"] if run["run"] == "t5-tiny-standard"
    )
    assert sorted(found["t5"].cell("T5, tiny", "standard").values) == wanted
    assert {"variable-assignment", "comparison", "after-pruning"} <= set(found)


@pytest.fixture
def _only_text(monkeypatch):
    """An experiment on a model that reads the text of its scale for four steps."""

    def needs(scale, seeds):
        data = dataclasses.replace(scale.data, vocabulary=300, context=16, validation=0.2)
        return with_seeds({"selective": tiny_run(data=data)}, seeds)

    def evaluate(lab):
        return Measured((Cell("loss", "selective", lab.losses("selective")),))

    only(monkeypatch, dataclasses.replace(TINY, needs=needs, evaluate=evaluate, losses_only=True))


@pytest.fixture
def record(tmp_path, only_tiny):
    run.reproduce("tiny", store=tmp_path / "store", out=tmp_path / "out")
    return tmp_path / "out/smoke/tiny.json"


def test_a_record_run_again_gives_its_numbers(record, tmp_path, capsys):
    found = again(record)
    assert (found.numbers, found.differ) == (3, ())
    assert lab(["again", str(record), "--store", str(tmp_path / "store")]) == 0
    assert "3 of 3 numbers are the same" in capsys.readouterr().out
    before = read_body(record, Reproduction)
    cells = (dataclasses.replace(before.cells[0], values=(1.25,)), *before.cells[1:])
    write_record(record, dataclasses.replace(before, cells=cells), [0])
    assert lab(["again", str(record), "--store", str(tmp_path / "store")]) == 1
    assert "loss, standard, seed 0: 1.25 in the record" in capsys.readouterr().out


@pytest.mark.usefixtures("_only_text")
def test_a_text_that_lies_elsewhere_now_is_named(tmp_path, capsys):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        text_file(tmp_path / name / "text.txt", documents=40)
    where = ["--store", str(tmp_path / "store")]
    given = ["tiny", "--scale", "laptop", "--source", str(tmp_path / "here/text.txt"), "--seeds", "0"]
    assert lab([*given, "--out", str(tmp_path / "out"), *where]) == 0
    (tmp_path / "here/text.txt").unlink()
    record = str(tmp_path / "out/laptop/tiny.json")
    assert lab(["again", record]) == 2
    assert lab(["again", record, "--source", str(tmp_path / "there/text.txt")]) == 0
    assert "1 of 1 numbers are the same" in capsys.readouterr().out


def test_a_text_that_a_record_does_not_read_is_refused(record, capsys):
    assert lab(["again", str(record), "--source", "text.txt"]) == 2
    assert "--source would change nothing: the smoke scale" in capsys.readouterr().err


def test_the_name_of_an_experiment_stands_for_its_record(record, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "OUT", tmp_path / "out")
    assert lab(["again", "tiny", "--store", str(tmp_path / "store")]) == 0
    assert "3 of 3 numbers are the same" in capsys.readouterr().out
    monkeypatch.setattr(run, "OUT", tmp_path / "nowhere")
    assert lab(["again", "tiny"]) == 2
    assert "there is no record of tiny in" in capsys.readouterr().err


def test_what_another_command_measured_is_run_again_by_it(tmp_path):
    taken = next(iter(earlier_records(ROOT / "results/reproduce")))
    write_record(tmp_path / "it.json", taken, [0])
    with pytest.raises(SelattnError, match=r"was taken from results/.*: run that record"):
        again(tmp_path / "it.json")
