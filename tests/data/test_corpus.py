"""From a source to stores: made once, found again, made anew when something has changed."""

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from selattn.data import (
    Reading,
    TokenStore,
    build_corpus,
    build_store,
    documents,
    store,
    store_for,
    tokenizer_for,
    vocabulary,
)
from selattn.data.sources import identity
from selattn.errors import SelattnError


@pytest.fixture
def source(tmp_path, topics):
    path = tmp_path / "topics.txt"
    path.write_text("\n".join(topics))
    return path


@pytest.fixture
def reads(monkeypatch):
    """How often the text was read."""
    real, seen = documents, []

    def read(*args):
        for text in real(*args):
            seen.append(text)
            yield text

    for place in (store, vocabulary):
        monkeypatch.setattr(place, "documents", read)
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


def test_a_store_is_found_under_every_spelling(source, tokenizer, reads, monkeypatch):
    monkeypatch.chdir(source.parent)
    first = store_for(source.name, tokenizer)
    count = len(reads)
    for spelling in (f"./{source.name}", source, f"../{source.parent.name}/{source.name}"):
        assert store_for(spelling, tokenizer).path == first.path
        assert tokenizer_for(spelling, 400).path == tokenizer_for(source, 400).path
    assert first.name == f"{source} (train)"
    reads_of_the_tokenizer = len(list(documents(source)))
    assert len(reads) == count + reads_of_the_tokenizer


def test_stores_from_before_are_found_unless_they_held_copies(source, tokenizer, tmp_path):
    """The key of a training store is what it was; a validation store of ours has another, those of others have not."""
    for text, split, same in ((source, "train", True), (source, "validation", False), ("c4", "validation", True)):
        parts = [identity(text), dataclasses.asdict(Reading()), split, tokenizer.fingerprint, True, 1]
        key = hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8).hexdigest()
        path = tmp_path / "cache" / "stores" / f"{Path(text).name}-{split}-{key}"
        build_store(path, ["from before"], tokenizer, "spelled in some way")
        if same:
            assert [tokenizer.decode(document) for document in store_for(text, tokenizer, split)] == ["from before"]
        else:
            assert store_for(text, tokenizer, split).path != path


@pytest.mark.parametrize("damage", [b"", b"no model"])
def test_a_damaged_tokenizer_of_the_cache_says_what_to_do(source, damage):
    made = tokenizer_for(source, 400)
    made.path.write_bytes(damage)
    with pytest.raises(SelattnError, match=r"is damaged: .*; delete that folder, and it is trained again") as error:
        tokenizer_for(source, 400)
    assert str(made.path.parent) in str(error.value)


def test_splits_do_not_overlap(source, tokenizer):
    reading = Reading(validation=0.3)
    stores = [store_for(source, tokenizer, split, reading) for split in ("train", "validation")]
    train, validation = ([tokenizer.decode(document) for document in store] for store in stores)
    everything = list(documents(source, "train", Reading(validation=0.0)))
    assert len(train) + len(validation) < len(everything)  # some documents occur more than once
    assert {*train, *validation} == set(everything)
    assert not {*train} & {*validation}


def test_a_folder_of_one_s_own(source, tokenizer, tmp_path):
    folder = tmp_path / "corpus"
    build_corpus(folder, source, tokenizer)
    assert sorted(path.name for path in folder.iterdir()) == ["tokenizer", "train", "validation"]
    assert TokenStore(folder / "train", verify=True).meta["source"] == f"{source} (train)"
    assert len(AutoTokenizer.from_pretrained(folder / "tokenizer")) == 500
