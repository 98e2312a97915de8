"""From a source to stores: made once, found again, made anew when something has changed."""

import pytest
from transformers import AutoTokenizer

from selattn.data import Reading, TokenStore, build_corpus, corpus, documents, store_for, tokenizer_for
from selattn.errors import SelattnError


@pytest.fixture
def source(tmp_path, topics):
    path = tmp_path / "topics.txt"
    path.write_text("\n".join(topics))
    return path


@pytest.fixture
def reads(monkeypatch):
    """How often the text was read."""
    real, seen = corpus.documents, []

    def documents(*args):
        for text in real(*args):
            seen.append(text)
            yield text

    monkeypatch.setattr(corpus, "documents", documents)
    return seen


def test_a_tokenizer_is_trained_once(source, reads):
    first = tokenizer_for(source, 400)
    count = len(reads)
    assert count
    assert first.vocab_size == 400
    assert tokenizer_for(source, 400).fingerprint == first.fingerprint
    assert len(reads) == count
    assert tokenizer_for(source, 401).vocab_size == 401


def test_a_store_is_built_once_for_each_setting(source, tokenizer, reads):
    first = store_for(source, tokenizer)
    count = len(reads)
    assert store_for(source, tokenizer).path == first.path
    assert len(reads) == count
    others = [
        store_for(source, tokenizer, "validation"),
        store_for(source, tokenizer, reading=Reading(separator="line")),
        store_for(source, tokenizer, eos=False),
    ]
    source.write_text(source.read_text() + "\n\nmore")
    others.append(store_for(source, tokenizer))
    assert len({first.path, *(store.path for store in others)}) == 5
    assert first.meta["documents"] + others[0].meta["documents"] == others[-1].meta["documents"] + len(others[0]) - 1


def test_splits_do_not_overlap(source, tokenizer):
    reading = Reading(validation=0.3)
    stores = [store_for(source, tokenizer, split, reading) for split in ("train", "validation")]
    texts = [tokenizer.decode(document) for store in stores for document in store]
    assert sorted(texts) == sorted(documents(source, "train", Reading(validation=0.0)))


def test_a_folder_of_one_s_own(source, tokenizer, tmp_path):
    folder = tmp_path / "corpus"
    build_corpus(folder, source, tokenizer)
    assert sorted(path.name for path in folder.iterdir()) == ["tokenizer", "train", "validation"]
    assert TokenStore(folder / "train", verify=True).meta["source"] == f"{source} (train)"
    assert len(AutoTokenizer.from_pretrained(folder / "tokenizer")) == 500


def test_a_folder_of_one_s_own_is_whole_or_not_there(source, tokenizer, tmp_path):
    with pytest.raises(SelattnError, match="has no test split"):
        build_corpus(tmp_path / "corpus", source, tokenizer, ["train", "test"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["topics.txt"]
