"""Rows of texts, losses paired by row, recall of pairs, and the whole grid at the smoke scale."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lab.__main__ import main as lab
from lab.engine.records import Reproduction
from lab.experiments.texts import MEAN, RowLosses, Setting, pieces, recall, row_losses
from selattn.cli.main import BAD_INPUT
from selattn.utils.records import read_body
from tools.records import main as records

VOCABULARY = 64


class Copies:
    """Predicts what came after the last earlier place of the same two tokens."""

    device, description = torch.device("cpu"), SimpleNamespace(vocab_size=VOCABULARY)

    def __call__(self, ids, **_):
        logits = torch.zeros(*ids.shape, VOCABULARY)
        for b, row in enumerate(ids.tolist()):
            after = {}
            for i in range(1, len(row)):
                if (row[i - 1], row[i]) in after:
                    logits[b, i, after[row[i - 1], row[i]]] = 20.0
                if i + 1 < len(row):
                    after[row[i - 1], row[i]] = row[i + 1]
        return SimpleNamespace(logits=logits)


class Blind(Copies):
    def __call__(self, ids, **_):
        return SimpleNamespace(logits=torch.zeros(*ids.shape, VOCABULARY))


def test_rows_are_pieces_of_one_document_unless_there_are_too_few():
    documents = [np.arange(10), np.arange(100, 103), np.arange(200, 208)]
    found, joined = pieces(documents, 4, 3)
    assert not joined
    assert [row.tolist() for row in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [200, 201, 202, 203]]
    found, joined = pieces(documents, 4, 5)
    assert joined
    assert [row.tolist() for row in found][2] == [8, 9, 100, 101]
    assert len(pieces(documents, 4, 6)[0]) == 5  # and then it is refused
    assert [row[0] for row in pieces(documents, 4, 2)[0]] == [0, 200]


def test_differences_are_paired_by_row():
    one = RowLosses({"a": (1.0, 2.0, 6.0), "b": (5.0, 5.0, 5.0)})
    two = RowLosses({"a": (0.0, 2.0, 4.0), "b": (4.0, 4.0, 4.0)})
    difference, error = one.less(two, "a")
    assert difference == pytest.approx(1.0)
    assert error == pytest.approx(1 / 3**0.5)  # that of the differences 1, 0, 2, far below that of either
    assert one.mean(MEAN) == pytest.approx(4.0)
    assert one.less(two, MEAN) == pytest.approx((1.0, error / 2))


def test_losses_are_row_by_row_and_leave_out_the_first_token():
    ids = torch.arange(40).reshape(2, 20) % VOCABULARY
    assert row_losses(Blind(), ids, Setting("standard")) == pytest.approx([np.log(VOCABULARY)] * 2)

    class Knows(Copies):
        def __call__(self, ids, **_):
            logits = torch.nn.functional.one_hot(ids.roll(-1, 1), VOCABULARY) * 50.0
            logits[1] = 0.0
            return SimpleNamespace(logits=logits)

    assert row_losses(Knows(), ids, Setting("standard")) == pytest.approx([0.0, np.log(VOCABULARY)], abs=1e-6)


def test_one_who_copies_recalls_pairs_at_every_distance_and_a_blind_one_none():
    rows = torch.randint(0, VOCABULARY // 2, (6, 128), generator=torch.Generator().manual_seed(0))
    before = rows.clone()
    found = recall(Copies(), rows, Setting("standard"))
    assert list(found) == [f"a pair, {distance} back" for distance in (16, 32, 64, 112)]
    assert min(each.right for each in found.values()) > 0.6  # some of the few tokens stand for two keys
    assert min(each.gain for each in found.values()) > 5
    assert torch.equal(rows, before)
    found = recall(Blind(), rows, Setting("standard"))
    assert {(each.gain, each.right) for each in found.values()} == {(0.0, 0.0)}


def test_a_text_that_is_no_mixture_is_refused(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("one two three")
    # before anything is trained
    where = ["--store", str(tmp_path / "store"), "--out", str(tmp_path / "out"), "--seeds", "0"]
    assert lab(["texts-pair", "--scale", "laptop", "--source", str(text), *where]) == BAD_INPUT
    assert "'python -m lab mixture' writes: give --source FOLDER/mixture" in capsys.readouterr().err


@pytest.fixture
def few_rows(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name, count in (("ROWS", 4), ("SEARCH_ROWS", 2), ("RECALL_ROWS", 4)):
        monkeypatch.setattr(f"lab.experiments.texts.{name}", count)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_record_grows_by_seeds_as_if_they_were_measured_together(tmp_path, few_rows):
    def record(folder):
        file = tmp_path / folder / "smoke/texts-learned.json"
        return read_body(file, Reproduction), json.loads(file.read_text())

    words = ["texts-learned", "--store", str(tmp_path / "store"), "--out"]
    assert lab([*words, str(tmp_path / "whole"), "--seeds", "0,1"]) == 0
    whole, _ = record("whole")
    assert records([*words, str(tmp_path / "grown"), "--seeds", "0"]) == 0
    _, first = record("grown")
    assert records([*words, str(tmp_path / "grown"), "--seeds", "0,1", "--extend"]) == 0
    grown, second = record("grown")
    measured = {"measured": whole.details["measured"]}
    assert replace(grown, details={**grown.details, **measured}) == whole
    assert len(whole.claims) == 2
    assert all(len(each.values) == 2 for each in (*whole.cells, *whole.claims))
    assert second["details"]["measured"][0] == first["details"]["measured"][0]  # when and where stays as it was
    assert [each["seed"] for each in second["details"]["measured"]] == [0, 1]

    other = {**first, "settings": {**first["settings"], "tokens": {"held-out documents": "another text"}}}
    (tmp_path / "grown/smoke/texts-learned.json").write_text(json.dumps(other))
    assert records([*words, str(tmp_path / "grown"), "--seeds", "1", "--extend"]) == BAD_INPUT


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_grid_at_the_smoke_scale(tmp_path, few_rows):
    assert lab(["texts", "texts-late", "--store", str(tmp_path / "store"), "--out", str(tmp_path / "out")]) == 0
    record = json.loads((tmp_path / "out/smoke/texts.json").read_text())
    rows = {cell["row"] for cell in record["cells"]}
    assert "standard, F: not run (it has no F)" in rows
    for kind in ("selective", "selective, memory loss"):
        for how in ("8 a layer, searched", "8 in every layer", "8 a layer, searched for Window+4"):
            assert f"{kind}, F, {how}, less Window+4" in rows
    cells = {(cell["row"], cell["column"]): cell["values"][0] for cell in record["cells"]}
    assert len(cells) == len(record["cells"])
    losses = record["details"]["losses"][0]
    ours, window = (
        losses[f"selective, {name}, 8 a layer, searched{more}"] for name, more in (("F", ""), ("Window+4", " for F"))
    )
    text = next(iter(ours))
    assert cells["selective, F, 8 a layer, searched, less Window+4", text] == pytest.approx(
        ours[text] - window[text], abs=2e-5
    )
    assert len(record["claims"]) == 32
    late = json.loads((tmp_path / "out/smoke/texts-late.json").read_text())
    assert {"standard, trained on, kept", "selective, memory loss at the end, F, 8 in every layer"} <= {
        cell["row"] for cell in late["cells"]
    }
