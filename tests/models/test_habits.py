"""What callers written for any model of transformers pass: accepted where it changes nothing, else refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

from selattn.errors import SelattnError
from selattn.models import SelectiveConfig, SelectiveForCausalLM
from tests.models.tiny import VARIANTS, tiny, tiny_config, token_ids


@pytest.mark.parametrize("name", ["sdpa", "eager", None])
def test_the_usual_attention_functions_change_nothing(name, tmp_path):
    model, ids = tiny(torch.float32), token_ids(2, 7)
    model.save_pretrained(tmp_path)
    for again in (
        AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=name),
        AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation={"": name}),
        AutoModelForCausalLM.from_pretrained(tmp_path, config=tiny_config(attn_implementation=name)),
    ):
        again.set_attn_implementation("sdpa")
        assert torch.equal(again(ids).logits, model(ids).logits)
    again.save_pretrained(tmp_path / "again")
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path / "again")) is SelectiveForCausalLM


@pytest.mark.parametrize("name", ["flash_attention_2", "flex_attention", "no_such_thing"])
def test_a_certain_kernel_is_refused(name):
    with pytest.raises(SelattnError, match="set by `attention` and `backend` in its config"):
        SelectiveForCausalLM._from_config(tiny_config(), attn_implementation=name)
    with pytest.raises(SelattnError, match="does not apply"):
        tiny().set_attn_implementation(name)


@pytest.mark.parametrize("part", ["language model", "decoder"])
def test_what_is_empty_is_accepted(part):
    model, ids = tiny(), token_ids(2, 7)
    model = model if part == "language model" else model.model
    usual = {"head_mask": None, "token_type_ids": torch.zeros_like(ids), "encoder_hidden_states": None}
    assert torch.equal(model(ids, **usual)[0], model(ids)[0])
    assert torch.equal(model(ids, token_type_ids=None)[0], model(ids)[0])
    for name, value in {"head_mask": torch.ones(2, 2), "token_type_ids": torch.ones_like(ids)}.items():
        with pytest.raises(SelattnError, match=f"no use for {name}: leave it out"):
            model(ids, **{name: value})


def test_token_types_in_generation_and_in_a_graph():
    model, ids = tiny(), token_ids(1, 5)
    wanted = model.generate(ids, max_new_tokens=4, do_sample=False)
    assert torch.equal(
        model.generate(ids, token_type_ids=torch.zeros_like(ids), head_mask=None, max_new_tokens=4, do_sample=False),
        wanted,
    )
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    types = torch.zeros_like(ids)
    assert torch.equal(compiled(ids, use_cache=False, token_type_ids=types).logits, model(ids).logits)
    with pytest.raises(RuntimeError, match="no use for token_type_ids"):
        compiled(ids, use_cache=False, token_type_ids=types + 1)
    torch.compiler.reset()


SPLIT = [{"tp_plan": "auto"}, {"tp_size": 2}, {"distributed_config": {"tp_size": 2}}]


@pytest.mark.parametrize("arguments", [*SPLIT, {"distributed_config": {"pp_size": 2}}])
def test_to_cut_a_model_up_is_refused(arguments, tmp_path):
    tiny(torch.float32).save_pretrained(tmp_path)
    with pytest.raises(SelattnError, match=r"a selecting head of its own|stages of a pipeline"):
        SelectiveForCausalLM.from_pretrained(tmp_path, **arguments)


def test_sharding_is_not_tensor_parallelism(tmp_path):
    """`DistributedConfig` sets tp_size=1 beside whatever is asked for."""
    model, ids = tiny(torch.float32), token_ids(2, 7)
    model.save_pretrained(tmp_path)
    for across in (DistributedConfig(fsdp_size=1), {"fsdp_size": 1, "tp_size": 1}):
        again = SelectiveForCausalLM.from_pretrained(tmp_path, distributed_config=across)
        assert torch.equal(again(ids).logits, model(ids).logits)


SHARDED = """
import sys, torch, selattn
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig
from tests.models.tiny import token_ids
torch.distributed.init_process_group("gloo")
ids = token_ids(2, 7)
plain = AutoModelForCausalLM.from_pretrained(sys.argv[1])
shards = AutoModelForCausalLM.from_pretrained(sys.argv[1], distributed_config=DistributedConfig(fsdp_size=2))
assert all(isinstance(parameter, DTensor) for parameter in shards.parameters())
for model in (plain, shards):
    model.train()(ids, labels=ids).loss.backward()
for (name, one), other in zip(plain.named_parameters(), shards.parameters(), strict=True):
    torch.testing.assert_close(other.grad.full_tensor(), one.grad, rtol=1e-4, atol=1e-6, msg=name)
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_sharded_over_two_processes_the_gradients_are_the_same(tmp_path):
    tiny(torch.float32, memory_epsilon=0.1).save_pretrained(tmp_path)
    script, root = tmp_path / "sharded.py", Path(__file__).parents[2]
    script.write_text(SHARDED)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script, tmp_path],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


PEFT = """
import sys
{imports}
from peft import LoraConfig, get_peft_model
model = get_peft_model(SelectiveForCausalLM(SelectiveConfig.from_d(1, vocab_size=9)), LoraConfig())
assert model.peft_config["default"].target_modules == {{"q_proj", "v_proj"}}
assert not [finder for finder in sys.meta_path if type(finder).__module__ == "selattn._later"]
"""
ORDERS = {
    "peft first": "import peft; from selattn import SelectiveConfig, SelectiveForCausalLM",
    "selattn first": "import selattn, peft; from selattn import SelectiveConfig, SelectiveForCausalLM",
}


@pytest.mark.parametrize("imports", ORDERS.values(), ids=ORDERS)
def test_adapters_find_their_layers(imports):
    done = subprocess.run([sys.executable, "-c", PEFT.format(imports=imports)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("method", ["LoraConfig", "IA3Config", "LoHaConfig", "BOFTConfig", "VeraConfig"])
@pytest.mark.parametrize("name", ["paper", "gpt2"])
@pytest.mark.filterwarnings("ignore")
def test_other_adapters_too(method, name):
    import peft

    model = peft.get_peft_model(tiny(torch.float32, **VARIANTS[name]), getattr(peft, method)(task_type="CAUSAL_LM"))
    ids = token_ids(2, 7)
    model(input_ids=ids, labels=ids).loss.backward()
    assert any(parameter.grad is not None for parameter in model.parameters())


def test_the_names_in_pefts_tables_are_names_of_layers():
    import peft.utils.constants as constants

    names = {name.rpartition(".")[2] for name, _ in SelectiveForCausalLM(SelectiveConfig.from_d(1)).named_modules()}
    tables = [table for name, table in vars(constants).items() if name.endswith("_MODULES_MAPPING")]
    ours = [layer for table in tables for layer in table.get("selattn", ())]
    assert len(ours) > 20
    assert set(ours) <= names
