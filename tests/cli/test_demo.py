"""`selattn demo`: the mechanism does in the example what the paper says, and the drawing shows it."""

import dataclasses
import os
import re
import subprocess
import sys

import pytest
import torch

from selattn.cli import _draw
from selattn.cli.main import main
from selattn.report.assignment import ANSWERS, TOKENS, compute
from selattn.training import contest
from selattn.training.config import Evaluation
from selattn.training.runs import find_run

BOS, Y7, X1, X3, Z5, QUESTION = range(6)


@pytest.fixture(scope="module")
def example():
    return compute()


def test_only_x3_masks_x1(example):
    """S: an assignment masks the earlier ones to its variable. The question does too, which is too late to matter."""
    expected = torch.zeros(6, 6)
    expected[X3, X1] = expected[QUESTION, X1] = expected[QUESTION, X3] = 5
    torch.testing.assert_close(example.S, expected)


def test_F_counts_for_later_tokens_only(example):
    expected = torch.zeros(6, 6)
    expected[Z5, X1] = expected[QUESTION, X1] = 5
    torch.testing.assert_close(example.F, expected)


def test_F_is_what_separates_the_two_attentions(example):
    """Where a row of F is zero nothing changes; elsewhere the odds change by exp(-F)."""
    torch.testing.assert_close(example.selective[:Z5], example.standard[:Z5])
    expected = torch.softmax(example.standard.log() - example.F, dim=-1)
    torch.testing.assert_close(example.selective, expected)


def test_standard_attention_cannot_tell_and_selective_attention_can(example):
    one, three = ANSWERS.index("1"), ANSWERS.index("3")
    assert example.standard_answer[one] == example.standard_answer[three]
    assert example.standard_answer[one] > 0.49
    assert example.selective_answer[three] > 0.98
    for answer in (example.standard_answer, example.selective_answer):
        torch.testing.assert_close(answer.sum(), torch.tensor(1.0))


@pytest.mark.parametrize("columns", [80, 120])
def test_drawing(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["demo", "--example"]) == 0
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


@pytest.mark.parametrize("columns", [80, 120])
def test_two_models_are_trained_and_compared(columns, capsys, monkeypatch):
    """One step of each: that the table is drawn, not that anything was learned."""
    monkeypatch.setenv("COLUMNS", str(columns))
    small = dataclasses.replace(find_run("variable-assignment-small-standard").batch, size=2)
    shrunk = {
        kind: dataclasses.replace(
            find_run(f"variable-assignment-small-{kind}"), batch=small, evaluation=Evaluation(rows=4)
        )
        for kind in ("selective", "standard")
    }
    monkeypatch.setattr(contest, "find_run", lambda name: shrunk[name.rpartition("-")[2]])
    assert main(["demo", "--steps", "1"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    rows = [line.split("│") for line in out.splitlines() if "│" in line]
    assert [row[1].strip() for row in rows] == ["100 values (as trained)", "2 values (never seen)"]
    assert all("%" in cell for row in rows for cell in row[2:5])
    assert "layer 1" in out
    assert "layer 2" in out


def test_narrow_terminals_stack_the_matrices(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["demo", "--example"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 60
    assert sum(line.startswith("x=?") for line in out.splitlines()) == 4


def test_arrows_point_at_their_tokens():
    sentence, arrow = _draw.sentence(TOKENS, [False] * 6, 7).plain, _draw.arrow(QUESTION, [X1, X3], 6, 7)
    assert [sentence[i - 1 : i + 2] for i, c in enumerate(arrow) if c == "▲"] == ["x=1", "x=3"]
    assert sentence[arrow.index("╯") - 1 : arrow.index("╯") + 2] == "x=?"


def piped(**settings):
    command, env = [sys.executable, "-m", "selattn", "demo", "--example"], {**os.environ, **settings}
    done = subprocess.run(command, capture_output=True, timeout=120, check=True, env=env)
    assert done.stderr == b""
    return done.stdout


def test_piped_output_has_no_escape_codes():
    out = piped(PYTHONIOENCODING="utf-8").decode()
    assert "\x1b" not in out
    assert "▲──────╯" in out


def test_colour_strikes_x1_through():
    out = piped(PYTHONIOENCODING="utf-8", FORCE_COLOR="1", TERM="xterm-256color", COLORTERM="truecolor").decode()
    assert re.search(r"\x1b\[9;31mx=1\x1b\[0m", out)


def test_a_terminal_without_unicode_gets_no_traceback():
    assert b"Selective attention" in piped(PYTHONIOENCODING="ascii")
