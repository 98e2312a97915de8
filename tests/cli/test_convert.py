"""`selattn convert`: a llama2.c checkpoint becomes a model folder with the same function and the same tokens."""

import itertools
import struct

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from selattn.cli.main import main
from selattn.data import DocumentRows, read_tokenizer
from selattn.data.store import build_store
from selattn.models import SelectiveForCausalLM

PIECES = [" t", "he", " a", " the", " at", " ", "t", "h", "e", "a", "c", "at", " c", " cat"]
SIZES = {"d": 16, "inner": 24, "layers": 2, "heads": 4, "groups": 2, "context": 32}


def write_tokenizer(path):
    special = [("<unk>", 0.0), ("\n<s>\n", 0.0), ("\n</s>\n", 0.0)] + [(f"<0x{b:02X}>", 0.0) for b in range(256)]
    tokens = special + [(piece, -float(rank)) for rank, piece in enumerate(PIECES)]
    data = struct.pack("<i", 7)
    for piece, score in tokens:
        data += struct.pack("<fi", score, len(piece.encode())) + piece.encode()
    path.write_bytes(data)
    return len(tokens)


def write_checkpoint(path, vocabulary, tied=True):
    """A file in llama2.c's order from a stock Llama, whose rows of W_q and W_k go back to neighbouring pairs."""
    torch.manual_seed(0)
    d, head = SIZES["d"], SIZES["d"] // SIZES["heads"]
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=d,
        intermediate_size=SIZES["inner"],
        num_hidden_layers=SIZES["layers"],
        num_attention_heads=SIZES["heads"],
        num_key_value_heads=SIZES["groups"],
        max_position_embeddings=SIZES["context"],
        rms_norm_eps=1e-5,
        initializer_range=0.3,
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    weights = model.state_dict()

    def pairs(w):
        return w.unflatten(0, (-1, 2, head // 2)).transpose(1, 2).flatten(0, 2)

    def each(name, change=lambda w: w):
        return [change(weights[f"model.layers.{layer}.{name}.weight"]) for layer in range(SIZES["layers"])]

    parts = [
        weights["model.embed_tokens.weight"],
        *each("input_layernorm"),
        *each("self_attn.q_proj", pairs),
        *each("self_attn.k_proj", pairs),
        *each("self_attn.v_proj"),
        *each("self_attn.o_proj"),
        *each("post_attention_layernorm"),
        *each("mlp.gate_proj"),
        *each("mlp.down_proj"),
        *each("mlp.up_proj"),
        weights["model.norm.weight"],
        torch.zeros(SIZES["context"], head),
        *([] if tied else [weights["lm_head.weight"]]),
    ]
    header = struct.pack("<7i", d, *list(SIZES.values())[1:5], vocabulary if tied else -vocabulary, SIZES["context"])
    path.write_bytes(header + b"".join(part.contiguous().numpy().astype("<f4").tobytes() for part in parts))
    return model


@pytest.mark.parametrize("tied", [True, False])
def test_the_function_is_the_same(tmp_path, tied, capsys):
    vocabulary = write_tokenizer(tmp_path / "tok.bin")
    theirs = write_checkpoint(tmp_path / "model.bin", vocabulary, tied)
    assert main(["convert", str(tmp_path), str(tmp_path / "out")]) == 0
    ours = SelectiveForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids = torch.randint(vocabulary, (2, 20))
    with torch.no_grad():
        torch.testing.assert_close(ours(ids, use_cache=False).logits, theirs(ids).logits, rtol=1e-4, atol=1e-5)
    assert main(["generate", str(tmp_path / "out"), "--prompt", "the cat", "--max-new-tokens", "3"]) == 0


def test_the_tokens_are_the_same(tmp_path):
    """SentencePiece, transformers' tokenizer, and llama2.c's own rule: join the pair that scores highest."""
    write_checkpoint(tmp_path / "model.bin", write_tokenizer(tmp_path / "tok.bin"))
    main(["convert", str(tmp_path), str(tmp_path / "out")])
    ours, theirs = read_tokenizer(tmp_path / "out"), AutoTokenizer.from_pretrained(tmp_path / "out")
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


def test_a_document_ends_where_the_next_would_begin(tmp_path):
    """llama2.c knows no </s>: in training and in its programs <s> ends a text, for tokenizers, rows and generation."""
    write_checkpoint(tmp_path / "model.bin", write_tokenizer(tmp_path / "tok.bin"))
    main(["convert", str(tmp_path), str(tmp_path / "out")])
    ours, theirs = read_tokenizer(tmp_path / "out"), AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (ours.bos_id, ours.eos_id, ours.pad_id) == (1, 1, 2)
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (1, 1, 2)
    store = build_store(tmp_path / "store", ["the cat", "a"], ours)
    assert store[0].tolist() == [1, *ours.encode("the cat"), 1]
    assert DocumentRows(store, 4)[1]["labels"].tolist() == [-100, *ours.encode("a"), 1, -100]  # the end has a loss
    model = SelectiveForCausalLM.from_pretrained(tmp_path / "out")
    assert model.generation_config.eos_token_id == 1


def test_errors(tmp_path, capsys):
    out = str(tmp_path / "out")
    write_tokenizer(tmp_path / "tok.bin")
    cases = [
        (lambda: None, "0 model .bin and 1 tok"),
        (lambda: (tmp_path / "model.bin").write_bytes(b"abc"), "no header"),
        (lambda: (tmp_path / "model.bin").write_bytes(b"\0" * 99), "sizes make no sense"),
        (lambda: write_checkpoint(tmp_path / "model.bin", 300), "do not belong together"),
        (lambda: (tmp_path / "model.bin").write_bytes((tmp_path / "model.bin").read_bytes()[:-4]), "not a whole"),
        (lambda: (tmp_path / "tok.bin").write_bytes(b"abcdefg"), "not a llama2.c tokenizer"),
    ]
    for prepare, says in cases:
        prepare()
        assert main(["convert", str(tmp_path), out]) == 2
        err = capsys.readouterr().err
        assert len(err.splitlines()) == 1
        assert says in err
        assert not (tmp_path / "out").exists()
