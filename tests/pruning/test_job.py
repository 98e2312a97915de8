"""The search set and the report set have no row in common, however the report's text is named."""

import shutil
from pathlib import Path

import pytest
import torch

from selattn.data import Reading
from selattn.evaluation.text import Text
from selattn.models.loading import load
from selattn.pruning import Procedure, Until
from selattn.pruning.run import Job, make_sets
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
