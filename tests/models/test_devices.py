"""Layers on several devices, or in the main memory or on the disk until they are used: with padding, the same."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import cpu_offload, dispatch_model
from torch.utils import backend_registration
from transformers import AutoModelForCausalLM

from tests.models.tiny import VARIANTS, padded, tiny, token_ids


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"), reason="needs a newer torch"
)
def test_on_two_devices():
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.models.placed"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "the same on two devices" in done.stdout


def places(model, where):
    names = [name for name, _ in model.named_children() if name != "model"]
    names += [f"model.{name}" for name, _ in model.model.named_children() if name != "layers"]
    layers = {f"model.layers.{layer}": where[layer % len(where)] for layer in range(len(model.model.layers))}
    return {**dict.fromkeys(names, "cpu"), **layers}


@pytest.mark.parametrize("name", ["paper", "all kinds", "separate rotary"])
@pytest.mark.parametrize("how", ["disk", "main memory", "from_pretrained"])
@pytest.mark.filterwarnings("ignore:Some parameters are on the meta device")
def test_layers_that_are_elsewhere_until_they_are_used(name, how, tmp_path):
    model = tiny(torch.float32, **VARIANTS[name], memory_epsilon=0.1)
    ids, mask = padded([token_ids(9, seed=0), token_ids(4, seed=1)], "left")
    settings = {"attention_mask": mask, "do_sample": False, "max_new_tokens": 5, "pad_token_id": 0}
    with torch.no_grad():
        wanted, text = model(ids, attention_mask=mask, labels=ids), model.generate(ids, **settings)
        if how == "main memory":
            model = cpu_offload(model, execution_device="cpu")
        elif how == "disk":
            model = dispatch_model(model, places(model, ["disk", "cpu"]), offload_dir=tmp_path)
        else:
            model.save_pretrained(tmp_path)
            model = AutoModelForCausalLM.from_pretrained(
                tmp_path, device_map=places(model, ["cpu", "disk"]), offload_folder=tmp_path / "offload"
            )
        found = model(ids, attention_mask=mask, labels=ids)
        assert torch.equal(found.logits, wanted.logits)
        assert torch.equal(found.loss, wanted.loss)
        assert torch.equal(model.generate(ids, **settings), text)
        assert any(parameter.device.type == "meta" for parameter in model.parameters())
