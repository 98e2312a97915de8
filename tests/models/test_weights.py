"""A saved model is read whole, or refused in one line."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from selattn.errors import SelattnError
from selattn.models import SelectiveConfig, SelectiveForCausalLM
from selattn.models.weights import load_whole

FILE = "model.safetensors"


@pytest.fixture
def saved(tmp_path):
    config = SelectiveConfig(vocab_size=11, hidden_size=8, num_hidden_layers=2, num_attention_heads=2)
    SelectiveForCausalLM(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_it_is_what_was_saved(saved):
    weights = load_file(saved / FILE)
    assert weights
    for name, value in load_whole(saved).state_dict().items():
        if name in weights:  # tied ones are saved once
            assert torch.equal(value, weights[name])


def spoil(file, how):
    weights = load_file(file)
    name = next(name for name in weights if "mlp" in name)
    if how == "missing":
        del weights[name]
    elif how == "misshapen":
        weights[name] = weights[name][:-1].clone()
    if how in ("missing", "misshapen"):
        save_file(weights, file, metadata={"format": "pt"})
    elif how == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    elif how == "rubbish":
        file.write_bytes(b"no weights")
    else:
        file.unlink()


@pytest.mark.parametrize("how", ["missing", "misshapen", "cut", "rubbish", "absent"])
@pytest.mark.filterwarnings("ignore")
def test_what_is_not_whole_is_refused(saved, how):
    """Without that, a missing tensor is drawn at random, and each run measures another model."""
    spoil(saved / FILE, how)
    with pytest.raises(SelattnError, match=r"model lacks 1 of its|cannot read the weights in .*model: ") as error:
        load_whole(saved)
    assert ("lacks" in str(error.value)) == (how == "missing")
    assert "\n" not in str(error.value)
