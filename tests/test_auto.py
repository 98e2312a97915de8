"""After `import selattn`, in whatever order, transformers' `Auto` classes know the models. Each in a fresh process."""

import subprocess
import sys

import pytest
import torch

from selattn import SelectiveConfig, SelectiveForCausalLM


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = SelectiveConfig(vocab_size=9, hidden_size=8, head_dim=4, num_hidden_layers=1, num_attention_heads=2)
    SelectiveForCausalLM(config).save_pretrained(path)
    return path


ORDERS = {
    "selattn first, config": "import selattn; from transformers import AutoConfig as Auto",
    "selattn first, model": "import selattn; from transformers import AutoModelForCausalLM as Auto",
    "transformers first": "from transformers import AutoModelForCausalLM as Auto; import selattn",
    "transformers first, nothing used": "import transformers, selattn; Auto = transformers.AutoModel",
    # modeling_layers imports the Auto classes while it is half loaded, and the models need modeling_layers.
    "through a half loaded module": (
        "import selattn, transformers.modeling_layers; from transformers import AutoModelForCausalLM as Auto"
    ),
    "models first": "import selattn.models; from transformers import AutoModelForCausalLM as Auto",
}


@pytest.mark.parametrize("imports", ORDERS.values(), ids=ORDERS)
def test_auto_classes_know_the_models(imports, folder):
    code = f"{imports}; print(type(Auto.from_pretrained({str(folder)!r})).__name__)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in {"SelectiveConfig", "SelectiveForCausalLM", "SelectiveModel"}


def test_the_hook_goes_when_it_has_done_its_work():
    code = """
import sys, selattn
def hooks(): return [f for f in sys.meta_path if type(f).__module__ == "selattn._later"]
assert [list(h.waiting) for h in hooks()] == [["transformers.models.auto.configuration_auto", "peft.utils.constants"]]
import transformers
assert len(hooks()) == 1 and "torch" not in sys.modules
from transformers import AutoConfig
assert [list(h.waiting) for h in hooks()] == [["peft.utils.constants"]] and "selattn.models" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
