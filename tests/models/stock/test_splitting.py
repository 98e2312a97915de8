"""Models whose layers are cut up among processes: each rank would select by a head of its own, so they are refused."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, T5Config, T5ForConditionalGeneration

import selattn
from selattn.errors import SelattnError
from tests import forked
from tests.models.stock.families import tiny, tokens

HEAD = "tensor parallelism would give each rank a selecting head of its own"
SPLIT = [{"tp_plan": "auto"}, {"tp_size": 2}, {"distributed_config": {"tp_size": 2}}]

TWO = """
import sys, torch, selattn
from selattn.errors import SelattnError
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig
from tests.models.stock.families import tokens
torch.distributed.init_process_group("gloo")
for sizes in ({"tp_size": 2}, {"fsdp_size": 2}):
    stock = AutoModelForCausalLM.from_pretrained("stock", distributed_config=DistributedConfig(**sizes))
    before = type(stock)
    try:
        selattn.make_selective(stock)
    except SelattnError as error:
        print(*sizes, error, flush=True)
    assert type(stock) is before
shards = AutoModelForCausalLM.from_pretrained("selective", distributed_config=DistributedConfig(fsdp_size=2))
torch.save(shards(tokens(1, 20)).logits.detach(), f"logits{torch.distributed.get_rank()}")
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_what_transformers_has_cut_up(tmp_path):
    """Tensor parallelism and FSDP2 of two processes; a selective model may be sharded by the latter."""
    tiny("llama").save_pretrained(tmp_path / "stock")
    model = selattn.make_selective(tiny("llama"))
    model.save_pretrained(tmp_path / "selective")
    (tmp_path / "two.py").write_text(TWO)
    done = forked.run([tmp_path / "two.py"], tmp_path, count=2)
    assert done.returncodes == [0, 0], done.stderr
    assert done.stdout.count(f"tp_size {HEAD}: load the model whole\n") == 2
    assert done.stdout.count("are spread over processes: make it selective first") == 2
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"logits{rank}"), model(tokens(1, 20)).logits)


def test_shards_that_are_plain_tensors():
    """As versions of transformers leave them that have no DTensors."""
    model = tiny("llama")
    model._tp_size = 1
    selattn.make_standard(selattn.make_selective(model))
    model._tp_size = 2
    with pytest.raises(SelattnError, match=HEAD):
        selattn.make_selective(model)
    assert type(model).__name__ == "LlamaForCausalLM"


@pytest.mark.parametrize("arguments", SPLIT)
@pytest.mark.parametrize("auto", [AutoModelForCausalLM, AutoModelForSeq2SeqLM])
def test_a_selective_folder_is_not_cut_up(arguments, auto, tmp_path):
    """It was: each rank then forgot by another head, without a word."""
    if auto is AutoModelForCausalLM:
        model = tiny("llama")
    else:
        sizes = {"d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 4, "vocab_size": 20}
        model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0))
    selattn.make_selective(model).save_pretrained(tmp_path)
    with pytest.raises(SelattnError, match=HEAD):
        auto.from_pretrained(tmp_path, **arguments)


def test_a_selective_folder_is_read_from_safetensors(tmp_path):
    selattn.make_selective(tiny("llama")).save_pretrained(tmp_path)
    with pytest.raises(SelattnError, match="safetensors only"):
        AutoModelForCausalLM.from_pretrained(tmp_path, use_safetensors=False)
