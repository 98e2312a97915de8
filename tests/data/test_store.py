"""Token stores: what goes in comes out, and a damaged or half-written one is never used."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selattn.data import TokenStore, build_store, store
from selattn.errors import SelattnError
from tests.data.bytes_tokenizer import BytesTokenizer

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=20)


@pytest.fixture
def small(tmp_path):
    return build_store(tmp_path / "store", ["one", "two and more", "three"], BytesTokenizer(), "a test")


@given(texts=TEXTS, eos=st.booleans(), batch=st.integers(1, 5))
def test_documents_come_back(texts, eos, batch, tmp_path_factory):
    tokenizer = BytesTokenizer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_BATCH", batch)
        made = build_store(tmp_path_factory.mktemp("store") / "s", iter(texts), tokenizer, eos=eos)
    opened = TokenStore(made.path, verify=True)
    assert [tokenizer.decode(document) for document in opened] == texts
    for document in opened:
        assert document[0] == tokenizer.bos_id
        assert (document[-1] == tokenizer.eos_id) == eos
    assert opened.meta["tokens"] == len(opened.tokens) == sum(map(len, opened))
    assert opened.meta["bytes"] == sum(len(text.encode()) for text in texts)
    assert len(opened) == len(texts)


def test_it_is_mapped_and_travels_by_path(small):
    assert isinstance(small.tokens, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        small.tokens[0] = 1
    sent = pickle.dumps(small)
    assert len(sent) < 500
    assert (pickle.loads(sent).tokens == small.tokens).all()


def test_what_is_there_is_not_read_again(small):
    def never():
        raise AssertionError("read again")
        yield

    assert len(build_store(small.path, never(), BytesTokenizer(), "a test")) == 3


def test_what_is_there_must_be_the_same(small):
    other = BytesTokenizer()
    other.fingerprint = "other"
    for settings in ({"tokenizer": other}, {"source": "b test"}, {"eos": False}):
        asked = {"tokenizer": BytesTokenizer(), "source": "a test"} | settings
        (name,) = settings
        with pytest.raises(SelattnError, match=f"is there, but was made with another {name}"):
            build_store(small.path, [], **asked)


def left_in(folder):
    return [path.name for path in folder.rglob("*")]


def test_interrupted_it_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_BATCH", 1)

    def texts():
        yield "one"
        assert left_in(tmp_path)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_store(tmp_path / "store", texts(), BytesTokenizer())
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("name", ["tokens.bin", "offsets.bin"])
def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch, name):
    """/dev/full fails as a full disk does: on some write, or only when the file is closed."""
    real = store._open
    monkeypatch.setattr(store, "_open", lambda path: real(Path("/dev/full") if path.name == name else path))
    with pytest.raises(SelattnError, match="nothing is left of it"):
        build_store(tmp_path / "store", ["some text"] * 10_000, BytesTokenizer())
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("name", ["tokens.bin", "offsets.bin"])
def test_a_shortened_or_missing_file_is_noticed(small, name):
    file = small.path / name
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole + b"\0", b""):
        file.write_bytes(damaged)
        with pytest.raises(
            SelattnError, match=f"is damaged: {name} has {len(damaged)} bytes, not {len(whole)}; delete"
        ):
            TokenStore(small.path)
    file.unlink()
    with pytest.raises(SelattnError, match=f"is damaged: {name} has 0 bytes"):
        TokenStore(small.path)


@pytest.mark.parametrize("name", ["tokens.bin", "offsets.bin"])
def test_a_changed_byte_is_noticed_when_asked(small, name):
    raw = bytearray((small.path / name).read_bytes())
    raw[3] ^= 1
    (small.path / name).write_bytes(raw)
    with pytest.raises(SelattnError, match=f"is damaged: {name} has changed"):
        TokenStore(small.path, verify=True)


def test_what_is_no_store(tmp_path, small):
    with pytest.raises(SelattnError, match=r"is not a token store: there is no meta.json"):
        TokenStore(tmp_path)
    file = small.path / "meta.json"
    file.write_text(json.dumps({**small.meta, "version": 99}))
    with pytest.raises(SelattnError, match="is not a token store of version 1"):
        TokenStore(small.path)
    file.unlink()
    file.mkdir()
    with pytest.raises(SelattnError, match=r"cannot read .*meta.json: Is a directory"):
        TokenStore(small.path)


@given(data=st.data())
def test_a_cut_or_changed_meta_json_says_what_to_do(tmp_path_factory, data):
    made = build_store(tmp_path_factory.mktemp("store") / "s", ["one", "two"], BytesTokenizer())
    file = made.path / "meta.json"
    whole = file.read_bytes()
    cut = data.draw(st.integers(0, len(whole) - 3), label="cut")
    key = data.draw(st.sampled_from([name for name in made.meta if name != "version"]), label="key")
    without = {name: value for name, value in made.meta.items() if name != key}
    for damaged in (whole[:cut], json.dumps(without).encode(), b"[1]", b"3", b"\xff\xfe"):
        file.write_bytes(damaged)
        with pytest.raises(SelattnError, match=r"is damaged: meta.json .*; delete the folder and build it again"):
            TokenStore(made.path)


@pytest.mark.parametrize("name", ["tokens.bin", "offsets.bin"])
@pytest.mark.parametrize("garbage", ["zeros", "ones", "random"])
def test_garbage_of_the_right_size_is_no_store(tmp_path, name, garbage):
    texts = [f"document {i}" for i in range(50)]
    made = build_store(tmp_path / "store", texts, BytesTokenizer())
    size = (made.path / name).stat().st_size
    draw = np.random.default_rng(0)
    found = {"zeros": bytes(size), "ones": b"\xff" * size, "random": draw.bytes(size)}[garbage]
    (made.path / name).write_bytes(found)
    with pytest.raises(SelattnError, match=r"is damaged: (tokens|offsets).bin .*; delete the folder and build it"):
        TokenStore(made.path)


def test_a_small_store_that_is_found_is_read_whole(small, monkeypatch):
    """A bit in the middle of a document; a large store would take too long, and is looked at in a few places."""
    raw = bytearray((small.path / "tokens.bin").read_bytes())
    raw[4] ^= 1
    (small.path / "tokens.bin").write_bytes(raw)
    with pytest.raises(SelattnError, match=r"is damaged: tokens.bin has changed since it was written"):
        build_store(small.path, [], BytesTokenizer(), "a test")
    monkeypatch.setattr(store, "_QUICK", 0)
    assert len(build_store(small.path, [], BytesTokenizer(), "a test")) == 3
