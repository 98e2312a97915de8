"""The search set and the report set have no row in common, however the report's text is named."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from selattn.data import Reading
from selattn.evaluation import Team
from selattn.evaluation import text as evaluate_text
from selattn.evaluation.text import Text
from selattn.models.loading import load
from selattn.pruning import Procedure, Until
from selattn.pruning import run as job
from selattn.pruning.run import Job, make_sets
from selattn.utils.progress import Progress
from tests.evaluation.folders import model_folder, text_file

CONTEXT, ROWS = 32, 6


def ids(batches):
    """The predicted tokens of every row."""
    return {tuple(row[row >= 0].tolist()) for batch in batches for row in batch.wanted}


@pytest.mark.parametrize("named", [None, "the same", "a copy"])
def test_no_row_is_searched_and_reported(tmp_path, named):
    model_folder(tmp_path / "model")
    text_file(tmp_path / "text.txt", documents=40)
    text = Text(str(tmp_path / "text.txt"), reading=Reading(validation=0.8))
    copy = Text(str(shutil.copy(text.source, tmp_path / "copy.txt")), reading=Reading(validation=0.8))
    report = {None: None, "the same": text, "a copy": copy}[named]
    made = Job("model", Path("out"), text, ROWS, Until(), Procedure(CONTEXT, 4), report=report, report_rows=5)
    tokenizer = load(tmp_path / "model").tokenizer
    rows = text.rows(tokenizer, CONTEXT)
    searched, reported = make_sets(made, rows, tokenizer)
    assert not ids(searched) & ids(reported)
    assert sum(len(batch.input_ids) for batch in reported) == 5


def test_another_text_is_reported_from_its_beginning(tmp_path):
    model_folder(tmp_path / "model")
    text_file(tmp_path / "text.txt", documents=40)
    text_file(tmp_path / "other.txt", documents=20)
    text, other = (Text(str(tmp_path / name), reading=Reading(validation=0.8)) for name in ("text.txt", "other.txt"))
    made = Job("model", Path("out"), text, ROWS, Until(), Procedure(CONTEXT, 4), report=other, report_rows=5)
    tokenizer = load(tmp_path / "model").tokenizer
    _, reported = make_sets(made, text.rows(tokenizer, CONTEXT), tokenizer)
    found = torch.cat([batch.input_ids for batch in reported])
    want = torch.stack([row["input_ids"] for row in other.rows(tokenizer, CONTEXT).take(5)])
    assert {*map(tuple, found.tolist())} == {tuple(row[: found.shape[1]].tolist()) for row in want}


@pytest.mark.parametrize("leads", [True, False])
def test_progress_is_shown_while_text_is_tokenized(tmp_path, monkeypatch, leads):
    """Of the text that is searched on and of the one that is reported on, by the process that leads."""
    model_folder(tmp_path / "model")
    for name in ("text.txt", "other.txt"):
        text_file(tmp_path / name, documents=40, seed=len(name))
    text, other = (Text(str(tmp_path / name), reading=Reading(validation=0.8)) for name in ("text.txt", "other.txt"))
    asked, real = [], evaluate_text.store_for
    monkeypatch.setattr(
        evaluate_text, "store_for", lambda *args, progress, **how: asked.append(progress) or real(*args, **how)
    )
    monkeypatch.setattr(Team, "leads", leads)
    made = Job(
        load(tmp_path / "model"), tmp_path / "out", text, ROWS, Until(factor=1.1), Procedure(CONTEXT, 4), report=other
    )
    monkeypatch.setattr(job, "claimed", None)  # the texts have been read by then
    with pytest.raises(TypeError):
        job._carry_out(dataclasses.replace(made, report_rows=5), Team(), Progress())
    assert asked == [leads, leads]
