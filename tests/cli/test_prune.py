"""`selattn prune`: budgets, the path and a figure; it goes on after any interruption; one line for what is wrong."""

import json
import os
import shutil

import pytest
import torch

from selattn.cache import Budgets
from selattn.cli.main import main
from selattn.models import SelectiveForCausalLM
from selattn.models.loading import load
from selattn.pruning import run as job
from selattn.pruning.folder import claimed
from tests import forked
from tests.evaluation.folders import model_folder, text_file


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    path = tmp_path_factory.mktemp("prune")
    model_folder(path / "model")
    text_file(path / "text.txt", documents=40)
    text_file(path / "short.txt", documents=60, words=3)
    return path


@pytest.fixture(autouse=True)
def _own_cache(here, monkeypatch):
    monkeypatch.setenv("SELATTN_CACHE", str(here / "cache"))


def command(here, out, *more, until="floor"):
    data = ["--data", str(here / "text.txt"), "--validation", "0.8", "--rows", "6", "--report-rows", "5"]
    how = ["--until", until, "--step", "4", "--batch", "2", "--out", str(out)]
    return ["prune", str(here / "model"), *data, *how, *more]


def path_of(folder):
    """The path but for what the clock says."""
    lines = (folder / "path.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "work"} for line in lines]


@pytest.fixture(scope="module")
def whole(here):
    os.environ["SELATTN_CACHE"] = str(here / "cache")
    assert main(command(here, here / "whole")) == 0
    return here / "whole"


def test_writes_budgets_path_figure_and_record(whole, here, capsys):
    path = path_of(whole)
    assert len(path) == 1 + 2 * 7
    assert path[-1]["budgets"] == [4, 4]
    assert Budgets.load(whole / "budgets.json") == Budgets((4, 4))
    assert (whole / "path.png").read_bytes()[:4] == b"\x89PNG"
    record = json.loads((whole / "record.json").read_text())
    assert record["memory_factor"] == 8.0
    assert [step["budgets"] for step in record["path"]] == [step["budgets"] for step in path]
    uses = ["--budgets", str(whole / "budgets.json"), "--max-new-tokens", "9"]
    assert main(["generate", str(here / "model"), "--prompt", "the cat", *uses]) == 0


def test_the_report_is_of_other_rows(whole, here):
    """The reported losses are those of a direct computation on the rows after the searched ones."""
    record = json.loads((whole / "record.json").read_text())
    from selattn.data import Reading
    from selattn.evaluation.text import Text

    text = Text(str(here / "text.txt"), reading=Reading(validation=0.8))
    rows = text.rows(load(here / "model").tokenizer, 32)
    searched, reported = rows.take(6), rows.take(5, skip=6)
    assert not {tuple(row["input_ids"].tolist()) for row in searched} & {
        tuple(r["input_ids"].tolist()) for r in reported
    }
    model = SelectiveForCausalLM.from_pretrained(here / "model").eval()
    for name, rows, budgets in (
        ("unpruned", reported, None),
        ("pruned", reported, [4, 4]),
    ):
        batch = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
        with torch.no_grad():
            want = model(**batch, use_cache=False, cache_budgets=budgets).lm_loss.item()
        assert record["report"][name] == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("lazy", [[], ["--lazy"]])
def test_interrupted_anywhere_it_ends_the_same(here, whole, tmp_path, monkeypatch, lazy):
    """Ctrl-C at every iteration, and a line that was cut off: the path and the budgets of one go."""
    out, want = tmp_path / "search", whole
    if lazy:
        want = tmp_path / "want"
        assert main(command(here, want, *lazy)) == 0
    real = job.append

    def interrupted(folder, step):
        real(folder, step)
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "append", interrupted)
    for _ in range(12):
        assert main(command(here, out, *lazy)) == 130
        with (out / "path.jsonl").open("a") as file:
            file.write('{"iteration": 3, "lay')
    monkeypatch.setattr(job, "append", real)
    assert not (out / "budgets.json").exists()
    assert main(command(here, out, *lazy)) == 0
    assert path_of(out) == path_of(want)
    assert (out / "budgets.json").read_text() == (want / "budgets.json").read_text()


def test_another_threshold_reads_the_same_path(whole, here, tmp_path):
    """What was searched is not searched again, and the budgets are those of a search of its own."""
    for until in ("factor=2", "tokens=40", "tolerance=0.003"):
        alone, again = tmp_path / until, tmp_path / f"{until}-again"
        assert main(command(here, alone, until=until)) == 0
        shutil.copytree(whole, again)
        assert main(command(here, again, until=until)) == 0
        assert path_of(again) == path_of(whole)
        assert path_of(alone) == path_of(whole)[: len(path_of(alone))]
        assert Budgets.load(alone / "budgets.json") == Budgets.load(again / "budgets.json")


def test_the_budgets_are_the_last_that_meet_the_threshold(whole, here, tmp_path):
    path = path_of(whole)
    limit = path[0]["loss"] + 0.003
    assert main(command(here, tmp_path / "a", until="tolerance=0.003")) == 0
    over = next(i for i, step in enumerate(path) if step["loss"] > limit)
    assert list(Budgets.load(tmp_path / "a" / "budgets.json")) == path[over - 1]["budgets"]
    assert main(command(here, tmp_path / "b", until="factor=2.5")) == 0
    enough = next(step for step in path if step["factor"] >= 2.5)
    assert list(Budgets.load(tmp_path / "b" / "budgets.json")) == enough["budgets"]


def test_a_threshold_that_even_the_floor_meets_is_told(whole, here, tmp_path, capsys):
    shutil.copytree(whole, tmp_path / "search")
    assert main(command(here, tmp_path / "search", until="tolerance=9")) == 0
    said = capsys.readouterr().out
    assert "No layer can give more, and the threshold is not reached: --floor 2 and another --out go further" in said
    record = json.loads((tmp_path / "search" / "record.json").read_text())
    assert (record["at_floor"], record["budgets"]) == (True, [4, 4])
    assert main(command(here, tmp_path / "search", until="factor=2")) == 0
    assert not json.loads((tmp_path / "search" / "record.json").read_text())["at_floor"]


def test_a_floor_goes_on_where_the_papers_procedure_ends(whole, here, tmp_path, capsys):
    assert main(command(here, tmp_path / "a", "--floor", "2")) == 0
    path = path_of(tmp_path / "a")
    assert path[: len(path_of(whole))] == path_of(whole)
    assert [sum(step["budgets"]) for step in path[len(path_of(whole)) :]] == [7, 6, 5, 4]
    assert main(command(here, tmp_path / "a", "--floor", "2", until="factor=11")) == 0
    assert sum(Budgets.load(tmp_path / "a" / "budgets.json")) == 5


def test_a_baseline_is_a_threshold(whole, here, tmp_path):
    """The model's own copy as the baseline: no loss above the unpruned one, on the search set."""
    shutil.copytree(here / "model", here / "copy", dirs_exist_ok=True)
    assert main(command(here, tmp_path / "a", until=f"baseline={here / 'copy'}")) == 0
    record = json.loads((tmp_path / "a" / "record.json").read_text())
    path = path_of(whole)
    over = next(i for i, step in enumerate(path) if step["loss"] > path[0]["loss"])
    assert record["budgets"] == path[over - 1]["budgets"]
    assert record["search_limit"] == pytest.approx(path[0]["loss"], rel=1e-9)
    assert record["report"]["baseline"] == pytest.approx(record["report"]["unpruned"], rel=1e-6)


def test_two_processes_find_what_one_finds(whole, here, tmp_path):
    done = forked.run(["-m", "selattn", *command(here, tmp_path / "two")], count=2)
    assert done.returncodes == [0, 0], done.stderr
    assert done.stdout.count("times less memory") == 1  # one of them speaks
    assert path_of(tmp_path / "two") == path_of(whole)
    assert (tmp_path / "two" / "budgets.json").read_text() == (whole / "budgets.json").read_text()


def test_a_copy_of_the_model_carries_its_budgets(whole, here, tmp_path):
    assert main(command(here, tmp_path / "a", "--save-model", str(tmp_path / "pruned"), until="factor=2")) == 0
    budgets = Budgets.load(tmp_path / "a" / "budgets.json")
    model = SelectiveForCausalLM.from_pretrained(tmp_path / "pruned").eval()
    assert model.config.budgets == budgets
    ids = torch.arange(3, 33)[None]
    plain = SelectiveForCausalLM.from_pretrained(here / "model").eval()
    with torch.no_grad():
        want = plain(ids, use_cache=False, cache_budgets=budgets).logits
        torch.testing.assert_close(model(ids, use_cache=False).logits, want)


def test_one_search_in_a_folder_at_a_time(here, tmp_path, capsys):
    with claimed(tmp_path / "search"):
        assert main(command(here, tmp_path / "search")) == 2
    assert "another process is searching" in capsys.readouterr().err
    assert main(command(here, tmp_path / "search", until="factor=1.1")) == 0


def test_ctrl_c_before_the_search_has_begun_leaves_nothing(here, tmp_path, monkeypatch):
    def interrupted(trials):
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "first_step", interrupted)
    assert main(command(here, tmp_path / "deep" / "search")) == 130
    assert list(tmp_path.iterdir()) == []


def test_a_text_may_be_named_in_another_way(whole, here, monkeypatch):
    """What is searched on is what it holds."""
    monkeypatch.chdir(here)
    before = (whole / "path.jsonl").read_text()
    words = command(here, whole)
    words[words.index("--data") + 1] = "./text.txt"
    assert main(words) == 0
    assert (whole / "path.jsonl").read_text() == before


def test_a_folder_of_another_search_is_left_alone(whole, here, capsys):
    before = (whole / "path.jsonl").read_text()
    assert main(command(here, whole, "--seed", "1")) == 2
    assert "holds a search with text.seed 0, not 1" in capsys.readouterr().err
    more = "".join(f"\n\nthe dog and {'the cat ' * number}\n" for number in range(9))
    (here / "text.txt").write_text((here / "text.txt").read_text() + more)
    assert main(command(here, whole)) == 2
    assert f"holds a search on other tokens than {here / 'text.txt'} has now" in capsys.readouterr().err
    assert (whole / "path.jsonl").read_text() == before


def test_the_same_weights_in_another_model_are_another_model(here, tmp_path, capsys):
    """What is computed with them stands in the config."""
    (here / "text.txt").write_text((here / "text.txt").read_text())
    shutil.copytree(here / "model", here / "changed", dirs_exist_ok=True)
    out = tmp_path / "search"
    words = command(here, out, until="factor=1.1")
    words[1] = str(here / "changed")
    assert main(words) == 0
    config = json.loads((here / "changed" / "config.json").read_text())
    (here / "changed" / "config.json").write_text(json.dumps({**config, "selection_strength": 0.9999}))
    assert main(words) == 2
    assert f"holds a search of {here / 'changed'} with other weights or settings" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["{", "[1]", '{"fingerprint": 1}'])
def test_a_damaged_folder_is_told(here, tmp_path, capsys, damage):
    out = tmp_path / "search"
    out.mkdir()
    (out / "search.json").write_text(damage)
    assert main(command(here, out)) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "damaged" in err or "with other weights or settings" in err
