import json
import math

import pytest
import torch

from selattn.errors import SelattnError
from selattn.models import SelectiveConfig, SelectiveForCausalLM
from selattn.ops import Selection
from tests.models.tiny import VARIANTS, tiny_config


def test_the_papers_sizes():
    for d in (8, 12, 28):
        config = SelectiveConfig.from_d(d)
        assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (64 * d, d, d)
        assert (config.vocab_size, config.max_position_embeddings, config.head_dim) == (8000, 512, 64)
        assert config.intermediate_size == math.floor(8 * 64 * d / 3)
        assert {kind.text for kind in config.kinds} == {"selective"}
        assert config.selection == Selection()
    assert SelectiveConfig.from_d(2, vocab_size=100, num_attention_heads=5).num_attention_heads == 5


def test_gpt2_has_four_times_the_width_in_its_mlp():
    config = SelectiveConfig.gpt2()
    assert (config.hidden_size, config.intermediate_size, config.vocab_size) == (768, 3072, 50257)
    assert config.bias
    assert config.tie_word_embeddings
    assert not config.qk_norm


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_saved_and_read_it_is_the_same(changes, tmp_path):
    config = tiny_config(**changes)
    config.save_pretrained(tmp_path)
    assert SelectiveConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()


WRONG = [
    ({"memory_epsilom": 0.1}, "unknown setting 'memory_epsilom' in a selattn config: did you mean 'memory_epsilon'?"),
    ({"n_layer": 2}, "unknown setting 'n_layer'"),
    ({"attention": "selektive"}, "unknown attention kind 'selektive'"),
    ({"attention": ["standard", "local:0"]}, "'local:0': a window, stride or summary must be at least 1"),
    ({"attention": []}, "attention is an empty list"),
    ({"num_attention_heads": 6, "num_key_value_heads": 4}, "6 heads cannot be shared out among 4 key-value heads"),
    ({"selection_head": 2}, "selection_head 2 does not fit 2 heads"),
    ({"selection_head": [0, 1], "num_attention_heads": 3}, "their number must divide that of the heads"),
    ({"selection_head": -1}, "must be a head index from 0"),
    ({"selection_head": 1, "selection_source": "separate"}, "no meaning with selection_source='separate'"),
    ({"selection_source": "bilinear"}, "selection_source must be head or separate or new, not 'bilinear'"),
    ({"positions": "alibi"}, "positions must be learned or rotary, not 'alibi'"),
    ({"positions": "rotary", "head_dim": 7}, "rotary positions need an even head_dim, not 7"),
    ({"norm": "batchnorm"}, "norm must be rmsnorm or layernorm"),
    ({"mlp": "relu"}, "mlp must be swiglu or gelu"),
    ({"hidden_size": 0}, "hidden_size must be a whole number of at least 1, not 0"),
    ({"hidden_size": 12.5}, "hidden_size must be a whole number of at least 1, not 12.5"),
    ({"num_hidden_layers": True}, "num_hidden_layers must be a whole number"),
    ({"qk_norm": "no"}, "qk_norm must be true or false, not 'no'"),
    ({"memory_epsilon": -0.1}, "memory_epsilon must be a number of at least 0, not -0.1"),
    ({"memory_epsilon": "0.1"}, "memory_epsilon must be a number of at least 0, not '0.1'"),
    ({"memory_epsilon": math.nan}, "memory_epsilon must be a number"),
    ({"memory_tau": 0}, "memory_tau must be a number above 0, not 0"),
    ({"selection_strength": 1.5}, r"selection_strength must be a number in \[0, 1\], not 1.5"),
    ({"attention_dropout": 1.0}, "attention_dropout must be a number of at least 0 and below 1"),
    ({"initializer_range": 0}, "initializer_range must be a number above 0"),
    ({"backend": "flash"}, "unknown backend 'flash': choose auto, reference"),
]


@pytest.mark.parametrize(("changes", "line"), WRONG, ids=[line[:40] for _, line in WRONG])
def test_what_cannot_work_is_told_in_one_line(changes, line):
    with pytest.raises(SelattnError, match=line) as caught:
        tiny_config(**changes)
    assert "\n" not in str(caught.value)


def test_a_typo_in_a_file_is_found(tmp_path):
    tiny_config().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "atention": ["standard"]}))
    with pytest.raises(SelattnError, match="unknown setting 'atention' in a selattn config: did you mean"):
        SelectiveConfig.from_pretrained(tmp_path)


def test_settings_changed_while_loading_are_checked_too(tmp_path):
    SelectiveForCausalLM(tiny_config()).save_pretrained(tmp_path)
    assert SelectiveConfig.from_pretrained(tmp_path, memory_epsilon=0.3).memory_epsilon == 0.3
    assert SelectiveForCausalLM.from_pretrained(tmp_path, attention="standard").config.attention == ["standard"]
    with pytest.raises(SelattnError, match="memory_epsilon must be"):
        SelectiveConfig.from_pretrained(tmp_path, memory_epsilon=-1)
    with pytest.raises(SelattnError, match="did you mean 'memory_epsilon'"):
        SelectiveConfig.from_pretrained(tmp_path, memory_epsilom=0.3)
    with pytest.raises(TypeError, match="memory_epsilom"):
        SelectiveForCausalLM.from_pretrained(tmp_path, memory_epsilom=0.3)


def test_a_config_changed_after_it_was_made_is_checked_by_the_model():
    config = tiny_config()
    config.num_key_value_heads = 3
    with pytest.raises(SelattnError, match="not a multiple"):
        SelectiveForCausalLM(config)


def test_two_models_of_one_config_do_not_change_each_other():
    config = tiny_config()
    first, second = SelectiveForCausalLM(config), SelectiveForCausalLM(config)
    first.resize_token_embeddings(40, mean_resizing=False)
    first.config.output_attentions = True
    first.config.backend = "reference"
    assert second.config.to_dict() == config.to_dict() == tiny_config().to_dict()
    assert second(torch.tensor([[1, 2, 3]])).attentions is None
    assert first.model.config is first.config
    assert len(first(torch.tensor([[1, 2, 35]])).attentions) == config.num_hidden_layers
