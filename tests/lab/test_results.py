"""The page of results is what the records say, and a record that is run again gives its numbers."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest

from lab import experiments
from lab.__main__ import main as lab
from lab.engine import run
from lab.engine.experiment import with_seeds
from lab.engine.records import LEAST, Cell, Claim, Measured, Reproduction, verdict
from lab.engine.run import again
from lab.results import (
    _CLEARER,
    MARK,
    MARKS,
    NOT_RANDOM,
    all_records,
    conclude,
    earlier_records,
    results_pages,
    write_results,
)
from selattn.errors import SelattnError
from selattn.utils.records import read_body, write_record
from tests.evaluation.folders import text_file
from tests.lab.tiny import TINY, only, tiny_run

ROOT = Path(__file__).parents[2]
RECORDS = sorted((ROOT / "results/reproduce/laptop").glob("*.json"))


PAGES = results_pages(ROOT / "results/reproduce")


def test_the_pages_are_what_the_records_say():
    """`python -m lab results` writes them."""
    files = [ROOT / "docs/results.md", *(ROOT / "docs/results").glob("*.md")]
    assert {file.relative_to(ROOT / "docs").as_posix(): file.read_text() for file in files} == PAGES


@pytest.mark.parametrize("path", PAGES)
def test_the_links_of_a_page_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)\)", PAGES[path]):
        assert (ROOT / "docs" / path).parent.joinpath(target).is_file(), target


def test_the_overview_is_short():
    assert PAGES["results.md"].count("\n") <= 220


def test_every_record_has_a_row_for_its_claims():
    """Claims of one record whose texts differ only in their setting share a row, which says how many they are."""
    page = PAGES["results.md"]
    for record in all_records(ROOT / "results/reproduce"):
        where = record.earlier or f"results/reproduce/{record.scale}/{record.experiment}.json"
        evidence = f"[details](results/{record.experiment}.md), [record](../{where})"
        rows = [line.split(" | ")[1] for line in page.splitlines() if line.startswith("|") and evidence in line]
        counted = [int(match[1]) if (match := re.search(r"of (\d+) settings", row)) else 1 for row in rows]
        assert len(rows) <= sum(counted) <= len(record.claims)
        assert bool(rows) == bool(record.claims)
        for said in ("holds", "fails"):
            without = [claim for claim in record.claims if not claim.caveat]
            assert (f"**{said}**" in rows) == any(verdict(claim, record.scale) == said for claim in without)


def test_a_verdict_has_three_seeds_or_is_one_of_the_few_that_are_marked():
    rows = [line.split(" | ") for line in PAGES["results.md"].splitlines() if re.search(r"\*\*(holds|fails)\*\*", line)]
    rows = [row for row in rows if len(row) > 1]  # the head explains the words
    marked = [row for row in rows if row[2] == NOT_RANDOM]
    assert len(marked) <= MARKS
    assert all(int(row[2].removesuffix(" seeds")) >= LEAST for row in rows if row not in marked)


def test_what_is_put_in_other_words_is_claimed():
    """A text that no experiment has any more would be in the list for nothing."""
    claims = [claim for record in all_records(ROOT / "results/reproduce") for claim in record.claims]
    texts = {claim.text for claim in claims} | {claim.caveat for claim in claims}
    plain = {re.sub(r", (rotary|learned positions)", "", text) for text in texts}
    assert set(_CLEARER) <= plain


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.stem)
def test_the_conclusions_of_a_record_are_those_of_the_code(file):
    """`python -m lab results` draws them again."""
    record = read_body(file, Reproduction)
    assert experiments.EXPERIMENTS[record.experiment].concluded(record) == record


def test_conclusions_are_drawn_again_and_measurements_stay(tmp_path):
    before = json.loads((ROOT / "results/reproduce/laptop/course.json").read_text())
    old = tmp_path / "course.json"
    old.write_text(json.dumps({**before, "claims": before["claims"][:1]}))
    assert conclude(old)
    assert json.loads(old.read_text()) == before
    assert not conclude(old)


def test_every_experiment_stands_on_the_page():
    page = PAGES["results.md"]
    assert [
        name for name in experiments.EXPERIMENTS if f"`{name}`" not in page and f"results/{name}.md" not in page
    ] == []


def pages_of(folder, *claims, seeds=(0, 1, 2), paper="Table 9"):
    """The pages of one record with these claims."""
    record = Reproduction("positions", paper, "it", "laptop", "a text", seeds, (), claims, (), {}, ())
    write_record(folder / "laptop/positions.json", record, list(seeds))
    return results_pages(folder)


def row_of(page, text):
    """The cells of a claim's row."""
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {text} |")]
    return line.split(" | ")[1:]


def test_a_record_changes_the_pages(tmp_path):
    before = results_pages(tmp_path)
    claim = Claim("It is faster.", (0.11, 0.12, 0.1), "seconds saved", paper=0.2)
    pages = pages_of(tmp_path, claim)
    assert row_of(pages["results.md"], "It is faster.")[:5] == ["**holds**", "3 seeds", "", "a text", "Table 9"]
    assert "1 of 1 hold, 0 fail, and 0 are too early to tell." in pages["results.md"]
    assert pages["results/positions.md"].startswith("# positions\n")
    assert "\nTable 9: it.\n" in pages["results/positions.md"]
    said = "| It is faster. | 0.110 (0.100 to 0.120, 3 seeds): seconds saved | 0.2 | holds |"
    assert said in pages["results/positions.md"]
    assert "- `positions`" in before["results.md"]
    assert "- `positions`" not in pages["results.md"]


@pytest.mark.parametrize(
    ("values", "caveat", "said"),
    [
        ((0.1, 0.11, 0.12), "", "**holds**"),
        ((-0.1, -0.11, -0.12), "", "**fails**"),
        ((0.1, 0.11, 0.12), "but it is young", "too early to tell: as claimed, but it is young"),
        ((0.1, -0.11, 0.12), "", "too early to tell: the seeds disagree, or nearly"),
        ((0.1, None, 0.12), "", "too early to tell: a seed is missing"),
        ((0.1,), "", "too early to tell: as claimed"),
        ((-0.1,), "", "too early to tell: against the claim"),
        ((0.1, -0.1), "", "too early to tell: they disagree"),
        ((None, None, None), "for no reason", "not measured: for no reason"),
    ],
)
def test_fewer_than_three_seeds_are_too_early(tmp_path, values, caveat, said):
    claim = Claim("It is faster.", values, "seconds saved", caveat=caveat)
    page = pages_of(tmp_path, claim, seeds=tuple(range(len(values))))["results.md"]
    runs = "one run" if len(values) == 1 else f"{len(values)} seeds"
    assert row_of(page, "It is faster.")[:2] == [said, runs]


def test_the_settings_of_a_claim_share_a_row_if_they_share_a_verdict(tmp_path):
    def claims(*values):
        texts = [f"At {size} tokens, {kind}: it helps." for size in (8, 9) for kind in ("rotary", "learned positions")]
        return [Claim(text, value, "nats") for text, value in zip(texts, values, strict=True)]

    one = claims((0.1,), (0.1,), (-0.1,), (0.0,))
    found = row_of(pages_of(tmp_path / "one", *one, seeds=(0,))["results.md"], "At 8 tokens, at 9 tokens: it helps.")
    assert found[0] == "too early to tell: as claimed in 2, against the claim in 1, no difference in 1 of 4 settings"
    good, bad = (0.1, 0.11, 0.12), (-0.1, -0.11, -0.12)
    page = pages_of(tmp_path / "all", *claims(good, good, good, good))["results.md"]
    assert row_of(page, "At 8 tokens, at 9 tokens: it helps.")[0] == "**holds**"
    page = pages_of(tmp_path / "apart", *claims(good, good, good, bad))["results.md"]
    assert row_of(page, "At 9 tokens, rotary: it helps.")[0] == "**holds**"
    assert row_of(page, "At 9 tokens, learned positions: it helps.")[0] == "**fails**"


def test_questions_that_the_paper_leaves_open_stand_apart(tmp_path):
    page = pages_of(tmp_path, Claim("It is faster.", (0.1,), "seconds"), seeds=(0,), paper="open: speed")["results.md"]
    assert page.index("## Questions that the paper leaves open") < page.index("| It is faster. |")
    assert row_of(page, "It is faster.")[4] == "speed"


def test_pages_without_a_record_are_removed_and_others_stay(tmp_path):
    (tmp_path / "records/laptop").mkdir(parents=True)
    shutil.copy(ROOT / "results/reproduce/laptop/parity.json", tmp_path / "records/laptop")
    folder = tmp_path / "docs/results"
    folder.mkdir(parents=True)
    (folder / "gone.md").write_text(f"# gone\n\n{MARK}\n")
    (folder / "mine.md").write_text("# mine\n")
    write_results(tmp_path / "records", tmp_path / "docs/results.md")
    assert sorted(file.name for file in folder.iterdir()) == ["mine.md", "parity.md"]


def test_a_long_table_is_folded(tmp_path):
    def page(rows):
        cells = tuple(Cell(f"row {row}", "loss", (1.0,)) for row in range(rows))
        record = Reproduction("positions", "Table 9", "it", "laptop", "a text", (0,), cells, (), (), {}, ())
        write_record(tmp_path / "reproduce/laptop/positions.json", record, [0])
        return results_pages(tmp_path / "reproduce")["results/positions.md"]

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
