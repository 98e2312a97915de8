"""A folder of llama2.c is a model: the same function, the same tokens, and one line for files that are not whole."""

import itertools

import numpy as np
import pytest

from selattn.data import DocumentRows
from selattn.data.store import build_store
from selattn.errors import SelattnError
from selattn.models.loading import load
from tests.models.stock.llama2c import PIECES, write_checkpoint, write_tokenizer


@pytest.fixture
def folder(tmp_path):
    write_checkpoint(tmp_path / "model.bin", write_tokenizer(tmp_path / "tok.bin"))
    return tmp_path


def test_the_tokens_are_the_same(folder):
    """SentencePiece, transformers' tokenizer, and llama2.c's own rule: join the pair that scores highest."""
    ours = load(folder).tokenizer
    theirs = ours.hf
    ids = {piece: 259 + rank for rank, piece in enumerate(PIECES)}
    rng = np.random.default_rng(0)
    drawn = ("".join(rng.choice(list(" theac"), 30)) for _ in range(20))
    for text in ("the cat", "at the  tea", "chat é\n", "", *drawn):
        tokens = [" ", *text] if text else []
        while True:
            joined = [(ids.get(a + b, 1 << 20), k) for k, (a, b) in enumerate(itertools.pairwise(tokens))]
            if not joined or min(joined)[0] == 1 << 20:
                break
            k = min(joined)[1]
            tokens[k : k + 2] = [tokens[k] + tokens[k + 1]]
        want = [i for token in tokens for i in ([ids[token]] if token in ids else [3 + b for b in token.encode()])]
        assert ours.encode(text) == want
        assert theirs(text).input_ids == [ours.bos_id, *want]
        assert ours.decode(want) == theirs.decode([ours.bos_id, *want], skip_special_tokens=True) == text


def test_a_document_ends_where_the_next_would_begin(folder, tmp_path):
    """llama2.c knows no </s>: in training and in its programs <s> ends a text, for tokenizers, rows and generation."""
    found = load(folder)
    ours = found.tokenizer
    assert (ours.bos_id, ours.eos_id, ours.pad_id) == (1, 1, 2)
    assert (ours.hf.bos_token_id, ours.hf.eos_token_id, ours.hf.pad_token_id) == (1, 1, 2)
    store = build_store(tmp_path / "store", ["the cat", "a"], ours)
    assert store[0].tolist() == [1, *ours.encode("the cat"), 1]
    assert DocumentRows(store, 4)[1]["labels"].tolist() == [-100, *ours.encode("a"), 1, -100]  # the end has a loss
    assert found.model.generation_config.eos_token_id == 1


def test_errors(tmp_path):
    write_tokenizer(tmp_path / "tok.bin")

    def whole():
        found = load(tmp_path)
        found.check()
        return found.tokenizer

    cases = [
        (lambda: None, "0 model .bin and 1 tok"),
        (lambda: (tmp_path / "model.bin").write_bytes(b"abc"), "no header"),
        (lambda: (tmp_path / "model.bin").write_bytes(b"\0" * 99), "sizes make no sense"),
        (lambda: write_checkpoint(tmp_path / "model.bin", 300), "do not belong together"),
        (lambda: (tmp_path / "model.bin").write_bytes((tmp_path / "model.bin").read_bytes()[:-4]), "not a whole"),
        (lambda: write_checkpoint(tmp_path / "model.bin", 300), "do not belong together"),
        (lambda: (tmp_path / "tok.bin").write_bytes(b"abcdefg"), "not a llama2.c tokenizer"),
    ]
    for prepare, says in cases:
        prepare()
        with pytest.raises(SelattnError, match=says.replace(".", "[.]")) as error:
            whole()
        assert "\n" not in str(error.value)
