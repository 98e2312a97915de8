"""Span corruption: nothing of the text is lost, and noise is as T5 has it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.spans import Spans, SpanSamples, TextRows, corrupt
from selattn.data import build_store
from selattn.data.draws import Draw
from selattn.errors import SelattnError
from tests.data.bytes_tokenizer import BytesTokenizer


def restored(inputs, labels, sentinels, end):
    """The text again: each sentinel of the inputs replaced by what the labels say after it."""
    assert inputs[-1] == labels[-1] == end
    said, current = {}, None
    for token in labels[:-1]:
        if token in sentinels:
            current = token
            said[current] = []
        else:
            said[current].append(token)
    return [x for token in inputs[:-1] for x in (said[token] if token in sentinels else [token])]


def test_the_lengths_of_t5():
    spans = Spans(512)
    assert (spans.tokens, spans.targets, spans.noise, spans.spans) == (568, 114, 85, 28)


@given(st.integers(16, 300), st.floats(0.05, 0.5), st.floats(1.0, 6.0), st.integers(0, 99))
def test_nothing_of_a_text_is_lost(context, density, length, seed):
    try:
        spans = Spans(context, density, length)
    except SelattnError:
        return
    mask = spans.mask(Draw(seed, [3]))
    assert mask.shape == (spans.tokens,)
    assert mask.sum() == spans.noise
    assert not mask[0]
    assert (mask[1:] & ~mask[:-1]).sum() == spans.spans
    text, sentinels = np.arange(1000, 1000 + spans.tokens), np.arange(500, 500 - spans.spans, -1)
    inputs, labels = corrupt(text, mask, sentinels, 1)
    assert len(inputs) <= context
    assert len(labels) == spans.targets
    assert restored(inputs.tolist(), labels.tolist(), sentinels.tolist(), 1) == text.tolist()


def test_every_place_is_noise_equally_often():
    spans = Spans(64)
    found = np.mean([spans.mask(Draw(0, [i])) for i in range(2000)], 0)
    inside = found[4:-8]  # a row begins with text and ends with noise
    assert np.abs(inside - inside.mean()).max() < 0.06
    borders = [np.flatnonzero(np.diff(spans.mask(Draw(0, [i])), prepend=False, append=False)) for i in range(200)]
    lengths = np.concatenate([np.diff(each)[::2] for each in borders])
    assert lengths.mean() == pytest.approx(spans.noise / spans.spans)
    assert lengths.min() == 1


@pytest.fixture
def store(tmp_path):
    texts = ["ab", "the cat sat on the mat " * 3, "x", "a dog " * 9, "one more"]
    return build_store(tmp_path / "store", texts, BytesTokenizer())


def test_rows_are_the_documents_one_after_another(store):
    rows = TextRows(store, 17)
    wanted = [token for i in range(len(store)) for token in store[i][1:-1].tolist()]
    assert len(rows) == len(wanted) // 17
    assert np.concatenate([rows[i] for i in range(len(rows))]).tolist() == wanted[: 17 * len(rows)]
    with pytest.raises(SelattnError, match="smaller than one row"):
        TextRows(store, 10_000)


def test_samples_are_a_function_of_seed_and_number(store):
    spans = Spans(16, 0.4, 2.0)
    rows, marks = TextRows(store, spans.tokens), ([299, 298, 297, 296], 1)
    one, other = (SpanSamples(rows, spans, *marks, seed, 5 * len(rows)) for seed in (0, 0))
    assert all(one[i][name].equal(other[i][name]) for i in (4, 0, 9) for name in one[0])
    epochs = {tuple(one[i]["labels"].tolist()) for i in range(len(one))}
    assert len(epochs) > 2 * len(rows)  # a row that comes again has other noise
    texts = [restored(one[i]["input_ids"].tolist(), one[i]["labels"].tolist(), *marks) for i in range(len(rows))]
    assert sorted(texts) == sorted(rows[i].tolist() for i in range(len(rows)))  # each row once in an epoch
    assert one[0]["input_ids"].shape == (16,)
