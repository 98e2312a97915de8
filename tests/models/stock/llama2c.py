"""Files as llama2.c writes them, from a stock Llama with random weights."""

import struct

import torch
from transformers import LlamaConfig, LlamaForCausalLM

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
