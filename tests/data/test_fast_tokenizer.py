"""The same tokenizer as transformers sees it."""

import re

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from selattn.data import Tokenizer
from selattn.errors import SelattnError

SPECIAL = st.sampled_from(["<s>", "</s>", "<pad>", "<unk>", "<0x41>"])
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"])) | SPECIAL).map("".join)


@pytest.fixture(scope="module")
def fast(tokenizer, tmp_path_factory):
    """As a user gets it: saved beside a model, and loaded with nothing of ours."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save_pretrained(folder)
    assert Tokenizer(folder).fingerprint == tokenizer.fingerprint
    return AutoTokenizer.from_pretrained(folder)


def assert_same(fast, tokenizer, text):
    """The same tokens, or others with the same score: of two equal ways to split `****` each takes one."""
    ids, expected = fast(text).input_ids, [tokenizer.bos_id, *tokenizer.encode(text)]
    if ids != expected:
        pieces = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_bytes())
        score, best = (sum(pieces.get_score(i) for i in row) for row in (ids, expected))
        assert abs(score - best) <= 1e-6 * len(text) * abs(best / len(expected))
    assert fast.decode(ids, skip_special_tokens=True) == tokenizer.decode(expected)


@given(text=TEXTS.map(lambda text: text.replace("▁", "_")))
def test_the_tokens_are_those_of_sentencepiece(fast, tokenizer, text):
    assert_same(fast, tokenizer, text)


def test_real_text(fast, tokenizer, topics):
    for text in topics:
        assert_same(fast, tokenizer, text)
        for line in text.split("\n"):
            if not re.search(r"(.)\1\1", line):  # a run can be split in ways that are equally good
                assert fast(line, add_special_tokens=False).input_ids == tokenizer.encode(line)


def test_special_tokens(fast, tokenizer):
    assert (fast.bos_token_id, fast.eos_token_id, fast.pad_token_id) == (3, 1, 0)
    assert len(fast) == tokenizer.vocab_size
    texts = ["a longer text", "x"]
    batch = fast(texts, padding=True, return_tensors="pt")
    assert batch["attention_mask"].sum(1).tolist() == [1 + len(tokenizer.encode(text)) for text in texts]


def train(topics, path, **settings):
    with path.open("wb") as file:
        lines = iter("".join(topics).split("\n"))
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines, model_writer=file, vocab_size=400, minloglevel=2, **settings
        )
    return Tokenizer(path)


def test_a_model_of_somebody_else(topics, tmp_path):
    """As T5's: with normalisation, without byte fallback, and without <BOS> and <pad>."""
    tokenizer = train(topics, tmp_path / "a.model", bos_id=-1)
    fast = tokenizer.to_transformers()
    assert len(fast) == tokenizer.vocab_size == 402
    assert (fast.bos_token_id, fast.pad_token_id) == (tokenizer.bos_id, tokenizer.pad_id) == (401, 400)
    for text in ("some  text ½ ", " The ﬁrst", "日本", ""):
        assert fast(text).input_ids == [tokenizer.bos_id, *tokenizer.encode(text)]


@pytest.mark.parametrize("settings", [{}, {"byte_fallback": True, "normalization_rule_name": "identity"}])
def test_a_bpe_model(topics, tmp_path, settings):
    """As Llama's: the pair that scores highest is joined first."""
    tokenizer = train(topics, tmp_path / "a.model", model_type="bpe", **settings)
    fast = tokenizer.to_transformers()
    assert len(fast) == tokenizer.vocab_size
    for text in (*topics[:5], "The ﬁrst ½", "日本", ""):
        for line in text.split("\n"):
            assert fast(line).input_ids == [tokenizer.bos_id, *tokenizer.encode(line)]


def test_other_models_cannot_be_converted(topics, tmp_path):
    with pytest.raises(SelattnError, match="is neither unigram nor BPE"):
        train(topics, tmp_path / "a.model", model_type="char", hard_vocab_limit=False).to_transformers()
