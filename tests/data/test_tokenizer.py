"""The one tokenizer at run time: every text comes back, whatever reads it; and old folders are still read."""

import json
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from selattn.cli.main import main
from selattn.data.tokenizer import Tokenizer, has_tokenizer, read_tokenizer
from selattn.errors import SelattnError
from selattn.models import SelectiveConfig, SelectiveForCausalLM
from selattn.models.loading import load
from tests.data import vocabulary

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"))


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    path.write_bytes(vocabulary.pieces())
    return read_tokenizer(path)


@pytest.fixture(scope="module")
def bytes_level():
    """As GPT-2's: bytes, <EOS> and nothing else; blanks belong to the word behind them, and offsets leave them out."""
    backend = Backend(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>"))


def test_the_first_ids_are_the_agreed_ones(ours):
    assert (ours.pad_id, ours.eos_id, ours.bos_id, ours.vocab_size) == (0, 1, 3, 500)
    assert ours.hf.convert_ids_to_tokens([0, 1, 2, 3, 4]) == ["<pad>", "</s>", "<unk>", "<s>", "<0x00>"]


@given(text=TEXTS)
def test_every_text_comes_back(ours, bytes_level, text):
    """Newlines, runs of blanks and characters never seen included; ▁ is how SentencePiece writes a blank."""
    for tokenizer in (ours, bytes_level):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.encode_batch([text, "x"]) == [ids, tokenizer.encode("x")]
        assert all(tokenizer.pad_id != i != tokenizer.bos_id for i in ids)
        assert tokenizer.decode([tokenizer.bos_id, *ids, tokenizer.eos_id]) == text


@given(text=TEXTS)
def test_parts_put_together_are_the_text(ours, bytes_level, text):
    for tokenizer in (ours, bytes_level):
        ids, parts = tokenizer.split(text)
        assert ids == [tokenizer.bos_id, *tokenizer.encode(text)]
        assert len(parts) == len(ids)
        assert parts[0] == tokenizer.hf.convert_ids_to_tokens(tokenizer.bos_id)
        assert "".join(parts[1:]) == text


def test_a_character_of_several_tokens_is_with_the_first(ours):
    _, parts = ours.split("a🙂b")
    assert parts[-5:] == ["🙂", "", "", "", "b"]


def test_characters_that_are_bytes_each_have_their_own(ours):
    _, parts = ours.split("a\u2603\u2603b")  # of which no piece is known: three bytes each
    assert parts[-7:] == ["\u2603", "", "", "\u2603", "", "", "b"]


def test_what_has_no_bos_begins_with_eos(bytes_level):
    assert bytes_level.bos_id == bytes_level.eos_id == bytes_level.pad_id == 256
    backend = Backend(models.BPE({"a": 0}, []))
    with pytest.raises(SelattnError, match="has neither <BOS> nor <EOS>: give it one"):
        Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))


def test_the_fingerprint_is_of_how_texts_are_split(ours, bytes_level, tmp_path):
    ours.save_pretrained(tmp_path / "saved")
    again = read_tokenizer(tmp_path / "saved")
    assert again.fingerprint == ours.fingerprint == pickle.loads(pickle.dumps(ours)).fingerprint
    again.hf(["a", "longer"], padding=True, truncation=True, max_length=3)  # which the library keeps in mind
    assert Tokenizer(again.hf).fingerprint == ours.fingerprint
    assert read_tokenizer(tmp_path / "saved" / "tokenizer.json").fingerprint == ours.fingerprint
    (tmp_path / "other.model").write_bytes(vocabulary.pieces(501))
    assert len({ours.fingerprint, bytes_level.fingerprint, read_tokenizer(tmp_path / "other.model").fingerprint}) == 3


def test_threads_change_nothing(ours):
    texts = vocabulary.topics()[:7]
    assert ours.encode_batch(texts, threads=3) == ours.encode_batch(texts) == [ours.encode(text) for text in texts]
    assert ours.encode_batch([], threads=3) == []


FORKS = """
import os, sys
from selattn.data.tokenizer import read_tokenizer
tokenizer = read_tokenizer(sys.argv[1])
tokenizer.encode_batch(["some text"] * 50, threads=2)
assert "TOKENIZERS_PARALLELISM" not in os.environ
if os.fork() == 0:
    os._exit(0)
os.wait()
"""


def test_nothing_is_said_when_workers_are_forked(ours):
    done = subprocess.run([sys.executable, "-c", FORKS, ours.path], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.fixture
def model(tmp_path):
    SelectiveForCausalLM(SelectiveConfig.from_d(1, vocab_size=500)).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_folder_of_an_older_version_is_read(model, ours):
    """With both files the tokenizer of transformers counts; with SentencePiece's alone that is converted."""
    assert not load(model).reads_text
    (model / "tokenizer.model").write_bytes(vocabulary.pieces())
    assert load(model).tokenizer.fingerprint == ours.fingerprint
    (model / "tokenizer.model").write_bytes(b"not looked at")
    ours.save_pretrained(model)
    assert load(model).tokenizer.fingerprint == ours.fingerprint


def test_what_is_no_tokenizer(tmp_path):
    with pytest.raises(SelattnError, match=r"cannot read the tokenizer .*nothing.model: No such file"):
        read_tokenizer(tmp_path / "nothing.model")
    assert not has_tokenizer(tmp_path)
    with pytest.raises(SelattnError, match=r"there is no tokenizer in .*: no tokenizer.json, and no tokenizer.model"):
        read_tokenizer(tmp_path)
    with pytest.raises(SelattnError, match=r"\(5,\d+ characters\): File name too long") as error:
        read_tokenizer(tmp_path / ("x" * 5000))
    assert len(str(error.value)) < 300
    (tmp_path / "a.model").write_text("not one")
    with pytest.raises(SelattnError, match=r"a.model is not a SentencePiece model"):
        read_tokenizer(tmp_path / "a.model")


BAD = {
    "cut": lambda folder: (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text()[:1000]),
    "empty": lambda folder: (folder / "tokenizer.json").write_text(""),
    "no JSON": lambda folder: (folder / "tokenizer_config.json").write_text("{"),
    "another": lambda folder: (folder / "tokenizer.json").write_text("{}"),
}


@pytest.mark.parametrize("spoil", BAD.values(), ids=BAD)
def test_a_tokenizer_that_cannot_be_read(model, spoil, ours, capsys):
    ours.save_pretrained(model)
    spoil(model)
    with pytest.raises(SelattnError, match=r"cannot read the tokenizer in .*model: ") as error:
        _ = load(model).tokenizer
    assert "\n" not in str(error.value)
    assert main(["generate", str(model), "--prompt", "x"]) == 2
    assert "cannot read the tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize(("known", "fits"), [(499, False), (500, True), (512, True), (513, False)])
def test_a_tokenizer_of_another_model(model, ours, known, fits):
    """A vocabulary may be rounded up to a multiple of 128."""
    ours.save_pretrained(model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "vocab_size": known}))
    if fits:
        assert load(model).tokenizer.vocab_size == 500
        return
    with pytest.raises(SelattnError, match=f"has 500 tokens, and its model knows {known}"):
        _ = load(model).tokenizer
