"""A SentencePiece model as a tokenizer of transformers: the same tokens, and a text that knows where it begins."""

import re
import subprocess
import sys

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, pipeline

from selattn.data.tokenizer import from_sentencepiece, read_tokenizer
from selattn.errors import SelattnError
from selattn.models import SelectiveConfig, SelectiveForCausalLM
from tests.data import vocabulary

SPECIAL = st.sampled_from(["<s>", "</s>", "<pad>", "<unk>", "<0x41>"])
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"])) | SPECIAL).map("".join)


@pytest.fixture(scope="module")
def fast(tmp_path_factory):
    """As a user gets it: saved beside a model, and loaded by name."""
    folder = tmp_path_factory.mktemp("model")
    from_sentencepiece(vocabulary.pieces(), "the pieces").save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def assert_same(fast, text):
    """The same tokens, or others with the same score: of two equal ways to split `****` each takes one."""
    pieces = vocabulary.processor()
    ids, expected = fast(text).input_ids, [pieces.bos_id(), *pieces.encode(text)]
    if ids != expected:
        score, best = (sum(pieces.get_score(i) for i in row) for row in (ids, expected))
        assert abs(score - best) <= 1e-6 * len(text) * abs(best / len(expected))
    assert fast.decode(ids, skip_special_tokens=True) == pieces.decode(expected)


@given(text=TEXTS.map(lambda text: text.replace("▁", "_")))
def test_the_tokens_are_those_of_sentencepiece(fast, text):
    assert_same(fast, text)


def test_real_text(fast):
    for text in vocabulary.topics():
        assert_same(fast, text)
        for line in text.split("\n"):
            if not re.search(r"(.)\1\1", line):  # a run can be split in ways that are equally good
                assert fast(line, add_special_tokens=False).input_ids == vocabulary.processor().encode(line)


@given(text=st.text(st.sampled_from("ab cdé.\n")), data=st.data())
def test_parts_of_a_text_are_the_text(fast, text, data):
    """Who decodes a continuation alone, as a pipeline does, gets the blank that stands before it.

    Of <BOS> alone nothing can be a continuation: the first word behind it has its blank when it is decoded alone.
    """
    ids = fast(text).input_ids
    byte = [bool(re.fullmatch(r"<0x..>", token)) for token in fast.convert_ids_to_tokens(ids)]
    cut = data.draw(st.sampled_from([n for n in range(2, len(ids) + 1) if not any(byte[n - 1 : n + 1])] or [len(ids)]))
    parts = [fast.decode(part, skip_special_tokens=True) for part in (ids[:cut], ids[cut:])]
    assert "".join(parts) == text
    assert fast.decode([fast.pad_token_id] * 2 + ids + [fast.pad_token_id], skip_special_tokens=True) == text
    assert fast.decode([ids, ids], skip_special_tokens=True) == [text] * 2


def test_a_pipeline_keeps_the_blank_before_the_continuation(fast, tmp_path):
    config = SelectiveConfig.from_d(1, vocab_size=len(fast), eos_token_id=1, pad_token_id=0)
    SelectiveForCausalLM(config).save_pretrained(tmp_path)
    fast.save_pretrained(tmp_path)
    words = [number for piece, number in fast.get_vocab().items() if re.fullmatch("▁[a-z]+", piece)]
    generator = pipeline("text-generation", model=str(tmp_path), device="cpu")
    settings = {"max_new_tokens": 3, "do_sample": False, "prefix_allowed_tokens_fn": lambda *_: words}
    whole, new = (generator("It was", return_full_text=full, **settings)[0]["generated_text"] for full in (True, False))
    assert whole == "It was" + new
    assert re.fullmatch("( [a-z]+){3}", new)


WITHOUT = """
import sys
from transformers import AutoTokenizer
fast = AutoTokenizer.from_pretrained(sys.argv[1])
assert "selattn" not in sys.modules
print(fast("some text").input_ids, fast.decode(fast("some text").input_ids, skip_special_tokens=True), sep="|")
"""


def test_it_is_read_without_selattn(fast, tmp_path):
    fast.save_pretrained(tmp_path)
    command = [sys.executable, "-W", "error", "-c", WITHOUT, str(tmp_path)]
    ids, text = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip("\n").split("|")
    assert ids == str(fast("some text").input_ids)
    assert text.lstrip(" ") == "some text"


def test_special_tokens(fast):
    assert (fast.bos_token_id, fast.eos_token_id, fast.pad_token_id) == (3, 1, 0)
    assert len(fast) == vocabulary.processor().vocab_size()
    texts = ["a longer text", "x"]
    batch = fast(texts, padding=True, return_tensors="pt")
    assert batch["attention_mask"].sum(1).tolist() == [1 + len(vocabulary.processor().encode(text)) for text in texts]


def test_missing_special_tokens_are_added(tmp_path):
    """As T5's: with normalisation, without byte fallback, and without <BOS> and <pad>."""
    path = vocabulary.train(tmp_path / "a.model", vocab_size=400, bos_id=-1)
    pieces, ours = sentencepiece.SentencePieceProcessor(model_file=str(path)), read_tokenizer(path)
    assert (ours.eos_id, ours.pad_id, ours.bos_id, ours.vocab_size) == (pieces.eos_id(), 400, 401, 402)
    assert ours.hf.convert_ids_to_tokens([400, 401]) == ["<pad>", "<s>"]
    assert ours.decode([401, *ours.encode("some text"), ours.eos_id, 400]) == "some text"
    for text in ("some  text ½ ", " The ﬁrst", "日本", ""):
        assert ours.hf(text).input_ids == [ours.bos_id, *pieces.encode(text)]


@pytest.mark.parametrize("settings", [{}, {"byte_fallback": True, "normalization_rule_name": "identity"}])
def test_a_bpe_model(tmp_path, settings):
    """As Llama's: the pair that scores highest is joined first."""
    path = vocabulary.train(tmp_path / "a.model", vocab_size=400, model_type="bpe", **settings)
    pieces, ours = sentencepiece.SentencePieceProcessor(model_file=str(path)), read_tokenizer(path)
    assert ours.vocab_size == pieces.vocab_size() + 1  # <pad>
    for text in (*vocabulary.topics()[:5], "The ﬁrst ½", "日本", ""):
        for line in text.split("\n"):
            assert ours.encode(line) == pieces.encode(line)


def test_other_models_cannot_be_converted(tmp_path):
    path = vocabulary.train(tmp_path / "a.model", vocab_size=400, model_type="char", hard_vocab_limit=False)
    with pytest.raises(SelattnError, match="is neither unigram nor BPE"):
        read_tokenizer(path)
