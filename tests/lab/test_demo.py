"""`python -m lab demo`: the mechanism does in the example what the paper says, and the drawing shows it."""

import dataclasses
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lab import demo, example
from lab.__main__ import main as lab
from lab.example import ANSWERS, compute
from lab.runs import find_run
from selattn.data import Reading
from selattn.evaluation.text import Text
from selattn.training.config import Evaluation
from tests.evaluation.folders import model_folder, text_file
from tests.views.outline import Outline

BOS, Y7, X1, X3, Z5, QUESTION = range(6)


@pytest.fixture(scope="module")
def by_hand():
    return compute()


def test_only_x3_masks_x1(by_hand):
    """S: an assignment masks the earlier ones to its variable. The question does too, which is too late to matter."""
    expected = torch.zeros(6, 6)
    expected[X3, X1] = expected[QUESTION, X1] = expected[QUESTION, X3] = 5
    torch.testing.assert_close(by_hand.S, expected)


def test_F_counts_for_later_tokens_only(by_hand):
    expected = torch.zeros(6, 6)
    expected[Z5, X1] = expected[QUESTION, X1] = 5
    torch.testing.assert_close(by_hand.F, expected)


def test_F_is_what_separates_the_two_attentions(by_hand):
    """Where a row of F is zero nothing changes; elsewhere the odds change by exp(-F)."""
    torch.testing.assert_close(by_hand.selective[:Z5], by_hand.standard[:Z5])
    expected = torch.softmax(by_hand.standard.log() - by_hand.F, dim=-1)
    torch.testing.assert_close(by_hand.selective, expected)


def test_standard_attention_cannot_tell_and_selective_attention_can(by_hand):
    one, three = ANSWERS.index("1"), ANSWERS.index("3")
    assert by_hand.standard_answer[one] == by_hand.standard_answer[three]
    assert by_hand.standard_answer[one] > 0.49
    assert by_hand.selective_answer[three] > 0.98
    for answer in (by_hand.standard_answer, by_hand.selective_answer):
        torch.testing.assert_close(answer.sum(), torch.tensor(1.0))


@pytest.mark.parametrize("columns", [80, 120])
def test_drawing(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert lab(["demo", "--example"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    assert "x=3 masks x=1" in out
    assert "Standard attention reads 1 (0.50) and 3 (0.50) alike." in out
    assert "Selective attention answers 3 (0.99)." in " ".join(out.split())
    # The last rows of S beside F, and of the two attentions beside each other.
    rows = [line.split() for line in out.splitlines() if line.startswith("x=?")]
    assert rows == [
        ["x=?", *"005500", "x=?", *"005000"],
        ["x=?", "0", "0", "0.50", "0.50", "0", "0", "x=?", "0.01", "0", "0.01", "0.99", "0", "0"],
    ]


@pytest.fixture
def _small(tmp_path, monkeypatch):
    """The same stages with little to do: one step, and a model of text that was never trained."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path / "cache"))
    batch = dataclasses.replace(find_run("variable-assignment-small-standard").batch, size=2)
    shrunk = {
        kind: dataclasses.replace(
            find_run(f"variable-assignment-small-{kind}"), batch=batch, evaluation=Evaluation(rows=4)
        )
        for kind in ("selective", "standard")
    }
    monkeypatch.setattr(demo, "find_run", lambda name: shrunk[name.rpartition("-")[2]])
    model_folder(Path("model"))
    text = Text(str(text_file(Path("text.txt"), documents=40)), reading=Reading(validation=0.8))
    little = partial(demo.DemoSizes, samples=4, questions=6, model="model", text=text, rows=2, batch=2, tokens=3)
    monkeypatch.setattr(demo, "DemoSizes", little)


@pytest.mark.usefixtures("_small")
def test_the_story_is_told_and_reported(capsys, monkeypatch):
    """That every stage is there, not that anything was learned."""
    monkeypatch.setenv("COLUMNS", "80")
    assert lab(["demo", "--steps", "1", "--html", "deep/story.html"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "deep/story.html"
    assert max(map(len, out.splitlines())) <= 80
    assert [line.split(" ─")[0] for line in out.splitlines() if re.match(r"\d\. ", line)] == [
        *("1. Learning", "2. Looking", "3. Forgetting", "4. Reading", "5. Reporting")
    ]
    named = ("100 values", "2 values", "tokens held", "loss on", "right answers of", "bytes of", "tokens per second")
    lines = [line.strip() for line in out.splitlines() if line.strip().startswith(named)]
    rows = [re.split(" {2,}", line) for line in lines]
    learned, shown = rows[:2], {row[0]: row[1:] for row in rows[2:7]}
    assert [row[0] for row in learned] == ["100 values (as trained)", "2 values (never seen)"]
    assert [name for name in shown if name not in ("tokens held, all layers", "loss on 6 unseen rows, nats")] == [
        *("right answers of 6", "bytes of the cache", "tokens per second")
    ]
    # The page has the same numbers.
    page = Outline(Path("deep/story.html").read_text())
    answers, costs, budgets, text_costs, text_budgets = page.tables
    assert answers[1:] == learned
    assert {row[0]: row[1:] for row in costs[1:]} == shown
    for table, cost, size in ((budgets, costs, 35), (text_budgets, text_costs, None)):
        kept = [int(row[1]) for row in table[1:-1]]
        assert cost[1][2] == table[-1][1] == f"{sum(kept):,}"
        assert size is None or cost[1][1] == f"{len(kept) * size:,}"
    whole, small = map(float, next(row for row in text_costs if row[0].startswith("loss"))[1:])
    (cost,) = re.findall(r"rows, for ([+-][\d.]+) nats on unseen ones", Path("deep/story.html").read_text())
    assert float(cost) == pytest.approx(small - whole, abs=2e-3)
    assert not Path("runs").exists()


@pytest.mark.usefixtures("_small")
def test_a_story_that_is_interrupted_says_so_in_one_line(capsys, monkeypatch):
    """In a training, which ends with a checkpoint, and anywhere else."""

    def stop(*given):
        raise KeyboardInterrupt

    for name, instead in (("train", lambda *given, **more: SimpleNamespace(interrupted=True)), ("learn", stop)):
        monkeypatch.setattr(demo, name, instead)
        assert lab(["demo", "--steps", "1", "--html", "story.html"]) == 130
        assert capsys.readouterr().err == "\nselattn: interrupted\n"
        assert not Path("story.html").exists()


def test_arrows_point_at_their_tokens():
    sentence, arrow = example.sentence([False] * 6, 7).plain, example.arrow(QUESTION, [X1, X3], 7)
    assert [sentence[i - 1 : i + 2] for i, c in enumerate(arrow) if c == "▲"] == ["x=1", "x=3"]
    assert sentence[arrow.index("╯") - 1 : arrow.index("╯") + 2] == "x=?"


def piped(**settings):
    command, env = [sys.executable, "-m", "lab", "demo", "--example"], {**os.environ, **settings}
    done = subprocess.run(command, capture_output=True, timeout=120, check=True, env=env)
    assert done.stderr == b""
    return done.stdout


def test_piped_output_has_no_escape_codes():
    out = piped(PYTHONIOENCODING="utf-8").decode()
    assert "\x1b" not in out
    assert "▲──────╯" in out
