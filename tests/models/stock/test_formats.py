"""Models as people have them: a folder of llama2.c, a GGUF file."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from selattn.cache import Budgets
from selattn.cli.main import main
from selattn.errors import SelattnError
from selattn.models.loading import load
from tests.models.stock.families import tiny, tokens
from tests.models.stock.llama2c import write_checkpoint, write_tokenizer


@pytest.mark.parametrize("tied", [True, False])
def test_a_folder_of_llama2c_is_a_model(tied, tmp_path, capsys):
    vocabulary = write_tokenizer(tmp_path / "tok.bin")
    theirs = write_checkpoint(tmp_path / "model.bin", vocabulary, tied)
    found, ids = load(tmp_path), torch.randint(vocabulary, (2, 20))
    with torch.no_grad():
        assert_close(found.model(ids, use_cache=False).logits, theirs(ids).logits, rtol=1e-4, atol=1e-5)
    assert found.tokenizer.decode(found.tokenizer.encode("the cat")) == "the cat"
    budgets = ["--budgets", "4", "--policy", "tova"]
    assert main(["generate", str(tmp_path), "--prompt", "the cat", "--max-new-tokens", "3", *budgets]) == 0
    assert main(["info", str(tmp_path)]) == 0


def write_gguf(path, model, pieces=None):
    """A file in llama.cpp's names, which has each head's rotary pairs side by side.

    Its tokenizer knows words without a meaning, or else bytes and these pieces, as llama.cpp has SentencePiece's.
    """
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    if pieces is None:
        words = ["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(config.vocab_size - 3))]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(words)
        writer.add_token_types([3, 3, 3, *[1] * (config.vocab_size - 3)])
        writer.add_token_merges(["w 0", "w 1"])
    else:
        bytes_, known = [f"<0x{b:02X}>" for b in range(256)], [piece.replace(" ", "▁") for piece in pieces]
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["<unk>", "<s>", "</s>", *bytes_, *known])
        writer.add_token_scores([0.0] * 259 + [-float(rank) for rank in range(len(known))])
        writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * len(known)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
    names |= {"self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up"}
    names |= {"mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    for name, weight in model.state_dict().items():
        x = weight.float()
        if "q_proj" in name or "k_proj" in name:
            x = x.unflatten(0, (-1, 2, config.head_dim // 2)).transpose(1, 2).flatten(0, 2)
        name = name.replace("model.layers.", "blk.").replace("model.embed_tokens", "token_embd")
        name = name.replace("model.norm", "output_norm").replace("lm_head", "output")
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        writer.add_tensor(name, x.contiguous().numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_a_model(tmp_path):
    pytest.importorskip("gguf")
    model, ids = tiny("llama"), tokens(1, 20)
    write_gguf(tmp_path / "tiny.gguf", model)
    found = load(tmp_path / "tiny.gguf")
    assert found.description.layers == 2
    assert not getattr(found.model, "is_quantized", False)  # else transformers' Trainer refuses it
    assert getattr(found.model, "hf_quantizer", None) is None
    with torch.no_grad():
        assert_close(found.model(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)
        assert found.model(ids, cache_budgets=6, cache_policy="tova").logits.shape == (1, 20, 61)


def test_a_gguf_file_that_cannot_be_read(tmp_path):
    pytest.importorskip("gguf")
    with pytest.raises(SelattnError, match="there is no file"):
        load(tmp_path / "tiny.gguf").config  # noqa: B018 (it is read when it is asked for)
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF and nothing more")
    with pytest.raises(SelattnError, match="cannot read"):
        load(tmp_path / "tiny.gguf").config  # noqa: B018


def test_a_copy_with_budgets_has_them_in_force(tmp_path):
    """`selattn prune --save-model`: a stock folder becomes one whose config has budgets and policy."""
    tiny("llama").save_pretrained(tmp_path / "stock")
    (tmp_path / "copy").mkdir()
    load(tmp_path / "stock").save_pruned(tmp_path / "copy", Budgets((4, 9)), "tova")
    found = load(tmp_path / "copy")
    assert (found.description.budgets, found.description.policy) == (Budgets((4, 9)), "tova")
    ids = tokens(2, 20)
    with torch.no_grad():
        want = load(tmp_path / "stock").model(ids, cache_budgets=Budgets((4, 9)), cache_policy="tova").logits
        assert torch.equal(found.model(ids).logits, want)
