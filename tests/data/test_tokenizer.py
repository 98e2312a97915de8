"""SentencePiece models: lossless, deterministic, and clear about what cannot be."""

import pickle

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from selattn.data import Tokenizer
from selattn.data.tokenizer import train_model
from selattn.errors import SelattnError


def test_the_first_ids_are_the_agreed_ones(tokenizer):
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id, tokenizer.vocab_size) == (0, 1, 3, 500)
    assert tokenizer.tokens([0, 1, 2, 3, 4]) == ["<pad>", "</s>", "<unk>", "<s>", "<0x00>"]


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁")))
def test_every_text_comes_back(tokenizer, text):
    """Newlines, runs of blanks and characters never seen included; ▁ is how SentencePiece writes a blank."""
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode_batch([text, "x"]) == [ids, tokenizer.encode("x")]
    assert all(tokenizer.pad_id != i != tokenizer.bos_id for i in ids)


def test_special_tokens_have_no_text(tokenizer):
    assert tokenizer.decode([tokenizer.bos_id, *tokenizer.encode("some text"), tokenizer.eos_id, 0, 0]) == "some text"


def test_training_is_deterministic(topics):
    assert train_model(topics[:4], 350) == train_model(iter(topics[:4]), 350)


def test_training_stops_after_enough_characters(topics):
    def endless():
        yield from topics[:2]
        raise AssertionError("read further than asked")

    train_model(endless(), 350, characters=len(topics[0]) + 1)


def test_an_error_in_the_text_is_not_the_end_of_it():
    def broken():
        yield "some text " * 100
        raise SelattnError("line 2: not JSON")

    with pytest.raises(SelattnError, match="line 2: not JSON"):
        train_model(broken(), 270)


def test_long_lines_are_not_left_out(topics):
    """SentencePiece itself skips them, and would find no text here."""
    assert train_model(["".join(topics).replace("\n", " ")], 400)


def test_it_travels_by_path(tokenizer):
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.fingerprint == tokenizer.fingerprint
    assert again.encode("some text") == tokenizer.encode("some text")


def test_missing_special_tokens_are_added(tmp_path, topics):
    """T5's model has no <BOS>, for example."""
    path = tmp_path / "other.model"
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter("".join(topics).split("\n")),
            model_writer=file,
            vocab_size=300,
            bos_id=-1,
            pad_id=-1,
            eos_id=1,
            unk_id=0,
            minloglevel=2,
        )
    tokenizer = Tokenizer(path)
    assert (tokenizer.eos_id, tokenizer.pad_id, tokenizer.bos_id, tokenizer.vocab_size) == (1, 300, 301, 302)
    assert tokenizer.decode([301, *tokenizer.encode("some text"), 1, 300]) == "some text"
    assert tokenizer.tokens([300, 301]) == ["<pad>", "<s>"]


@pytest.mark.parametrize(
    ("texts", "size", "message"),
    [
        (["hello world"], 8000, r"the text is too small for 8000 tokens: at most \d+"),
        (["".join(map(chr, range(0x4E00, 0x5200)))], 400, r"400 tokens are too few for the characters of the text"),
        (["hello world"], 100, "a vocabulary needs more than 260 tokens"),
        ([], 300, "there is no text to train a tokenizer on"),
    ],
)
def test_what_cannot_be_trained(texts, size, message):
    with pytest.raises(SelattnError, match=message):
        train_model(texts, size)


def test_what_is_no_tokenizer(tmp_path):
    with pytest.raises(SelattnError, match=r"cannot read the tokenizer .*nothing.model: No such file"):
        Tokenizer(tmp_path / "nothing.model")
    with pytest.raises(SelattnError, match=r"cannot read the tokenizer .*tokenizer.model: No such file"):
        Tokenizer(tmp_path)
    (tmp_path / "a.model").write_text("not one")
    with pytest.raises(SelattnError, match=r"a.model is not a SentencePiece model"):
        Tokenizer(tmp_path / "a.model")
