"""A hidden name: where it stands, what the control lacks, and a reader that copies."""

from types import SimpleNamespace

import pytest
import torch

from lab.experiments.needle import hide, score
from selattn.errors import SelattnError
from selattn.models.loading import load

CONTEXT, DISTANCE = 128, 80


@pytest.fixture(scope="module")
def tokenizer():
    return load("zoo:memory").tokenizer


@pytest.fixture(scope="module")
def needles(tokenizer):
    rows = [[tokenizer.bos_id, *(100 + (7 * i + k) % 500 for i in range(CONTEXT))] for k in range(6)]
    return hide(rows, tokenizer, CONTEXT, DISTANCE)


def test_a_name_stands_in_the_sentence_and_is_asked_for(needles, tokenizer):
    for row, control, answer in zip(
        needles.ids.tolist(), needles.control.tolist(), needles.answer.tolist(), strict=True
    ):
        wanted = [token for token in answer if token != -100]
        name = tokenizer.decode(wanted)
        told, asked = tokenizer.decode(row[1 : CONTEXT - DISTANCE]), tokenizer.decode(row[CONTEXT - DISTANCE :])
        assert row[-len(wanted) :] == control[-len(wanted) :] == wanted
        assert f"{name} was a painter ." in told
        first = asked.removesuffix(name).split()[-1]
        assert f"{first} {name} was" in told
        assert f"{first} {name} was" not in tokenizer.decode(control[1:])
        assert f"{first} " in tokenizer.decode(control[1 : CONTEXT - DISTANCE])
    assert len({tuple(row) for row in needles.answer.tolist()}) > 3


def test_a_reader_that_copies_gains_and_one_that_does_not_gains_nothing(needles):
    vocabulary = 3072

    def copies(ids, **_):
        """The token that came after the last earlier place of the same two tokens."""
        logits = torch.zeros(*ids.shape, vocabulary)
        for b, row in enumerate(ids.tolist()):
            after = {}
            for i in range(1, len(row) - 1):
                after[row[i - 1], row[i]] = row[i + 1]
                if (row[i], row[i + 1]) in after:
                    logits[b, i + 1, after[row[i], row[i + 1]]] = 20.0
        return SimpleNamespace(logits=logits)

    copies.device = torch.device("cpu")
    found = score(copies, needles)
    assert found.right > 0.5
    assert found.gain > 5
    blind = lambda ids, **_: SimpleNamespace(logits=torch.zeros(*ids.shape, vocabulary))  # noqa: E731
    blind.device = torch.device("cpu")
    found = score(blind, needles)
    assert (found.gain, found.right) == (0.0, 0.0)


def test_no_room_is_one_line(tokenizer):
    with pytest.raises(SelattnError, match="no room for a name"):
        hide([[1] * 64], tokenizer, 64, 60)
    with pytest.raises(SelattnError, match="too short to hide a name"):
        hide([[1] * 20], tokenizer, CONTEXT, DISTANCE)
