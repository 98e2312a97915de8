"""Saved and loaded, here and in a fresh process, it is the same model; and weights are safetensors only."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from selattn.errors import SelattnError
from selattn.models import SelectiveConfig, SelectiveForCausalLM, SelectiveModel
from tests.models.tiny import VARIANTS, tiny, token_ids


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_loaded_it_gives_the_same_logits(changes, tmp_path):
    model, ids = tiny(torch.float32, **changes), token_ids(2, 9)
    model.save_pretrained(tmp_path)
    again = SelectiveForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(ids).logits, model(ids).logits)
    assert again.config.to_dict() == {**model.config.to_dict(), "_name_or_path": str(tmp_path)}
    assert again.num_parameters() == model.num_parameters()


FRESH = """
import json, sys
import selattn
from transformers import AutoModelForCausalLM
import torch
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
logits = model(torch.tensor(json.loads(sys.argv[2]))).logits
torch.save(logits, sys.argv[3])
"""


def test_in_a_fresh_process_too(tmp_path):
    model, ids = tiny(torch.float32, **VARIANTS["all kinds"]), token_ids(2, 9)
    model.save_pretrained(tmp_path)
    out = tmp_path / "logits"
    subprocess.run([sys.executable, "-c", FRESH, tmp_path, json.dumps(ids.tolist()), out], check=True)
    assert torch.equal(torch.load(out, weights_only=True), model(ids).logits)


def test_auto_classes(tmp_path):
    tiny(torch.float32).save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is SelectiveConfig
    assert type(AutoModel.from_pretrained(tmp_path)) is SelectiveModel
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path)) is SelectiveForCausalLM


def test_only_safetensors_are_written_and_read(tmp_path):
    model = tiny(torch.float32)
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json"}
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    with pytest.raises(SelattnError, match="reads weights from safetensors only"):
        SelectiveForCausalLM.from_pretrained(tmp_path, use_safetensors=False)
    for path in tmp_path.glob("model*"):
        path.unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        SelectiveForCausalLM.from_pretrained(tmp_path)


def test_in_half_precision(tmp_path):
    model = tiny(torch.bfloat16)
    model.save_pretrained(tmp_path)
    assert SelectiveForCausalLM.from_pretrained(tmp_path).dtype == torch.bfloat16
    assert SelectiveForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).dtype == torch.float32
