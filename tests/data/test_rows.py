"""Rows against plain definitions of both layouts, and the order in which they come."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selattn.data import DocumentRows, PackedRows, Shuffled, build_store, check_vocabulary
from selattn.errors import SelattnError
from selattn.models import SelectiveConfig, SelectiveForCausalLM
from selattn.ops import Sequences
from tests.data.bytes_tokenizer import BytesTokenizer

BOS, EOS, PAD = BytesTokenizer.bos_id, BytesTokenizer.eos_id, BytesTokenizer.pad_id
TEXTS = st.lists(st.text("abc", min_size=1, max_size=30), min_size=1, max_size=25)


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    def make(texts, eos=True):
        return build_store(tmp_path_factory.mktemp("rows") / "store", texts, BytesTokenizer(), eos=eos)

    return make


def check_interface(rows):
    assert rows.vocab_size == BytesTokenizer.vocab_size
    for row in rows:
        for column in row.values():
            assert column.dtype == torch.int64
            assert column.shape == (rows.context,)


@given(texts=TEXTS, context=st.integers(2, 20), eos=st.booleans())
def test_document_rows(make, texts, context, eos):
    store = make([*texts, "a" * 40], eos)
    rows = DocumentRows(store, context)
    check_interface(rows)
    documents = [document.tolist() for document in store]
    assert len(rows) == len(documents)
    for row, document in zip(rows, documents, strict=True):
        real = min(len(document), context)
        assert row["input_ids"].tolist() == document[:context] + [PAD] * (context - real)
        assert row["attention_mask"].tolist() == [1] * real + [0] * (context - real)
        assert row["labels"].tolist() == [-100, *document[1:context]] + [-100] * (context - real)


@given(texts=TEXTS, context=st.integers(2, 20), eos=st.booleans())
def test_packed_rows_reconstruct_the_documents(make, texts, context, eos):
    """Every token but <BOS> has its loss once and in order, up to the last full row."""
    store = make([*texts, "a" * 40], eos)
    rows = PackedRows(store, context)
    check_interface(rows)
    seen = torch.cat([row["labels"][row["labels"] != -100] for row in rows]).tolist()
    expected = [int(token) for document in store for token in document[1:]]
    assert seen == expected[: len(seen)]
    assert len(expected) - len(seen) < context
    for row in rows:
        assert torch.equal(row["labels"][row["labels"] != -100], row["input_ids"][row["labels"] != -100])


@given(texts=TEXTS, context=st.integers(2, 20))
def test_packed_rows_keep_the_borders(make, texts, context):
    """Positions restart exactly at each <BOS>, and each sequence is a piece of one document."""
    store = make([*texts, "a" * 40])
    documents = [document.tolist() for document in store]
    rows = PackedRows(store, context)
    for index, row in enumerate(rows):
        ids, labels = row["input_ids"].tolist(), row["labels"].tolist()
        filled = labels[-1] == -100 and int(row["position_ids"][-1]) != 0  # one token too few: see PackedRows
        starts = [i for i, position in enumerate(row["position_ids"].tolist()) if position == 0]
        assert starts[0] == 0
        assert starts == Sequences.from_position_ids(row["position_ids"][None]).first[0].nonzero()[:, 0].tolist()
        assert starts == [i for i, token in enumerate(ids[: context - filled]) if token == BOS]
        for start, stop in zip(starts, [*starts[1:], context - filled], strict=True):
            piece = ids[start + 1 : stop]
            assert EOS not in piece[:-1]
            assert any(_contains(document, piece) for document in documents)
            if stop < context - filled:
                assert piece[-1] == EOS
            assert row["position_ids"][start:stop].tolist() == list(range(stop - start))
        if filled:
            following = rows[index + 1]["input_ids"].tolist() if index + 1 < len(rows) else None
            assert following is None or ids[-1] in following[:2]


def _contains(document, piece):
    return any(document[k : k + len(piece)] == piece for k in range(len(document)))


def test_a_model_reads_packed_documents_as_it_reads_them_alone(make):
    """The interface, tried on the model: a document that is whole in a packed row has the logits of its own row."""
    store = make(["abcabc", "bca", "cab" * 9])
    torch.manual_seed(0)
    config = SelectiveConfig.from_d(1, vocab_size=store.vocab_size, max_position_embeddings=16)
    model = SelectiveForCausalLM(config).eval()
    packed, alone = PackedRows(store, 13)[0], DocumentRows(store, 13)
    with torch.no_grad():
        one = model(**{name: column[None] for name, column in packed.items() if name != "labels"}).logits[0]
        two = model(**{name: column[None] for name, column in alone[0].items() if name != "labels"}).logits[0]
        three = model(**{name: column[None] for name, column in alone[1].items() if name != "labels"}).logits[0]
    torch.testing.assert_close(one[:8], two[:8])
    torch.testing.assert_close(one[8:12], three[:4])


@pytest.mark.parametrize("layout", [DocumentRows, PackedRows])
def test_a_corpus_smaller_than_one_context(make, layout):
    store = make(["abc", "ab"])
    assert len(layout(store, 9)) >= 1
    with pytest.raises(SelattnError, match=r"the corpus is smaller than one context: 9 tokens in .*, context 10"):
        layout(store, 10)
    with pytest.raises(SelattnError, match="leaves nothing to predict"):
        layout(store, 1)


@given(texts=TEXTS, seed=st.integers(0, 2**64 - 1), size=st.integers(1, 80))
def test_a_shuffled_epoch_has_every_row_once(make, texts, seed, size):
    rows = DocumentRows(make([f"{i} {text}" for i, text in enumerate(texts)]), 3)
    order = Shuffled(rows, seed, size)
    assert len(order) == size
    seen = [tuple(row["input_ids"].tolist()) for row in order]
    everything = sorted(tuple(row["input_ids"].tolist()) for row in rows)
    for start in range(0, size - len(rows) + 1, len(rows)):
        assert sorted(seen[start : start + len(rows)]) == everything
    assert (order.vocab_size, order.context) == (rows.vocab_size, rows.context)


@pytest.mark.parametrize(("tokens", "known", "fits"), [(500, 500, True), (500, 512, True), (500, 513, False)])
@pytest.mark.parametrize("as_config", [SimpleNamespace, SelectiveConfig])
def test_the_vocabulary_has_to_match_the_model(tokens, known, fits, as_config):
    data, config = SimpleNamespace(vocab_size=tokens), as_config(vocab_size=known)
    if fits:
        check_vocabulary(data, config)
    else:
        with pytest.raises(SelattnError, match="a vocabulary of 500 tokens and the model one of 513"):
            check_vocabulary(data, config)
