"""The small parts, each beside a second opinion, and their initial weights."""

import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaMLP, LlamaRotaryEmbedding, apply_rotary_pos_emb

from selattn.models import SelectiveForCausalLM
from selattn.models.decoder import make_mlp, make_norm, rotary_angles, rotate
from tests.models.tiny import VARIANTS, tiny_config


def test_rotary_positions_are_llamas():
    config = tiny_config(positions="rotary", rope_theta=500.0)
    llama = LlamaConfig(
        hidden_size=16, num_attention_heads=2, rope_parameters={"rope_type": "default", "rope_theta": 500.0}
    )
    q, k = torch.randn(3, 2, 11, 8), torch.randn(3, 2, 11, 8)
    positions = torch.arange(11).expand(3, 11) + torch.tensor([[0], [5], [40]])
    wanted = apply_rotary_pos_emb(q, k, *LlamaRotaryEmbedding(llama)(q, positions))
    found = [rotate(x, rotary_angles(config, positions)) for x in (q, k)]
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_swiglu_is_llamas():
    config = tiny_config()
    ours = make_mlp(config)
    theirs = LlamaMLP(LlamaConfig(hidden_size=16, num_attention_heads=2, intermediate_size=config.intermediate_size))
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(3, 5, 16)
    torch.testing.assert_close(ours(x), theirs(x))


def test_norms():
    x = 3 * torch.randn(4, 16) + 1
    rms = make_norm(tiny_config(norm_eps=1e-9))(x)
    layer = make_norm(tiny_config(norm="layernorm", norm_eps=1e-9))(x)
    torch.testing.assert_close(rms, x / x.square().mean(-1, keepdim=True).sqrt())
    torch.testing.assert_close(layer, (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True))


def test_normalised_queries_and_keys_share_one_gain_among_the_heads():
    attention = SelectiveForCausalLM(tiny_config()).model.layers[0].attention
    assert attention.q_norm.weight.shape == attention.k_norm.weight.shape == (8,)
    assert isinstance(SelectiveForCausalLM(tiny_config(qk_norm=False)).model.layers[0].attention.q_norm, nn.Identity)


@pytest.mark.parametrize("changes", [VARIANTS["paper"], VARIANTS["gpt2"], VARIANTS["separate"]])
@pytest.mark.parametrize("scale", [0.01, 0.1])
def test_initial_weights(changes, scale):
    """A padding token's embedding is like the others: it may be one with a meaning, and has to be trained."""
    config = tiny_config(**{**changes, "initializer_range": scale, "hidden_size": 128, "pad_token_id": 0})
    model = SelectiveForCausalLM(config)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            assert abs(module.weight.std() / scale - 1) < 0.1
            assert abs(module.weight.mean()) < 0.1 * scale
            assert getattr(module, "bias", None) is None or not module.bias.any()
        elif isinstance(module, nn.RMSNorm | nn.LayerNorm):
            assert (module.weight == 1).all()
    assert abs(model.model.embed_tokens.weight[0].std() / scale - 1) < 0.3
