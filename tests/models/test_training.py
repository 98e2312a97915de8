"""Under the Hugging Face Trainer: accumulation, evaluation, checkpointing, autocast, packing, LoRA, two processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import DataCollatorWithFlattening

from selattn.models import SelectiveForCausalLM
from tests.models.tiny import tiny, token_ids
from tests.models.training import Rows, trainer

EPSILON = {"memory_epsilon": 0.5}


def trained(folder, changes=EPSILON, **arguments):
    """The weights after two steps of gradient descent."""
    model = tiny(torch.float32, **changes)
    trainer(model, folder, **arguments).train()
    return dict(model.state_dict())


def assert_same(found, wanted, atol=1e-6):
    for name, weight in wanted.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=atol, msg=name)


def by_hand(changes=EPSILON):
    """Two steps on all four rows at once, with no trainer."""
    model, ids = tiny(torch.float32, **changes).train(), Rows(4).ids
    for _ in range(2):
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    return dict(model.state_dict())


@pytest.mark.parametrize("micro", [4, 2, 1])
def test_accumulated_micro_batches_are_one_big_batch(micro, tmp_path):
    arguments = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": 4 // micro}
    found = trained(tmp_path, **arguments)
    assert_same(found, by_hand())
    without = by_hand({"memory_epsilon": 0.0})
    assert max((found[name] - without[name]).abs().max() for name in found) > 1e-3  # the memory term did something


def test_with_autocast_it_is_nearly_the_same(tmp_path):
    found, wanted, start = trained(tmp_path, bf16=True), by_hand(), tiny(torch.float32, **EPSILON).state_dict()
    moved = sum((wanted[name] - start[name]).square().sum() for name in wanted).sqrt()
    off = sum((wanted[name] - found[name]).square().sum() for name in wanted).sqrt()
    assert off < 0.1 * moved


def test_packed_rows_train_like_padded_ones(tmp_path):
    """The flattening collator makes one row of a batch; the trainer keeps what tells its documents."""
    rows = Rows(4)
    model = tiny(torch.float32, **EPSILON)
    flat = trainer(model, tmp_path, rows)
    flat.data_collator = DataCollatorWithFlattening()
    flat.train()
    assert_same(dict(model.state_dict()), by_hand())


def test_evaluation_reports_the_whole_loss(tmp_path):
    model = tiny(torch.float32, **EPSILON)
    run = trainer(model, tmp_path, per_device_eval_batch_size=4)
    found = run.evaluate(Rows(4, seed=1))["eval_loss"]
    ids = Rows(4, seed=1).ids
    assert abs(found - model.eval()(ids, labels=ids).loss.item()) < 1e-5
    predicted = run.predict(Rows(4, seed=1)).predictions
    assert predicted.shape == (4, 10, 31)  # the logits alone: nothing that is only for logging


def test_label_smoothing_shifts_the_labels(tmp_path):
    """The trainer then computes the loss, and must know by the model's name that labels are those of the next token."""
    model, ids = tiny(torch.float32), Rows(4).ids
    run = trainer(model, tmp_path, label_smoothing_factor=1e-9)
    loss = run.compute_loss(model, {"input_ids": ids, "labels": ids})
    torch.testing.assert_close(loss, model(ids, labels=ids).lm_loss, rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
def test_lora_trains_and_changes_nothing_else(tmp_path):
    model = tiny(torch.float32, memory_epsilon=0.1)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj", "up_proj"])
    adapted = peft.get_peft_model(model, config)
    ids = token_ids(4, 10)
    first = adapted(ids, labels=ids).loss.item()
    trainer(adapted, tmp_path, max_steps=3, learning_rate=0.5).train()
    adapted.eval()
    assert adapted(input_ids=ids, labels=ids).loss.item() < first
    frozen = {name.replace(".base_layer", ""): weight for name, weight in model.state_dict().items()}
    for name, weight in before.items():
        assert torch.equal(frozen[name], weight)
    adapted.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(tiny(torch.float32, memory_epsilon=0.1), tmp_path / "adapter").eval()
    torch.testing.assert_close(again(input_ids=ids).logits, adapted(input_ids=ids).logits)
    merged = adapted.merge_and_unload()
    assert isinstance(merged, SelectiveForCausalLM)
    torch.testing.assert_close(merged(ids).logits, again(input_ids=ids).logits, rtol=0, atol=1e-5)


TWO_PROCESSES = """
import sys, torch
from tests.models.test_training import EPSILON
from tests.models.tiny import tiny
from tests.models.training import trainer
torch.set_num_threads(1)
model = tiny(torch.float32, **EPSILON)
run = trainer(model, sys.argv[1], per_device_train_batch_size=1, gradient_accumulation_steps=2, ddp_backend="gloo")
assert run.args.world_size == 2 and run.args.average_tokens_across_devices
run.train()
if run.args.process_index == 0:
    model.save_pretrained(sys.argv[1])
"""


@pytest.mark.slow
def test_two_processes_are_one(tmp_path):
    """Two gloo processes, each with two micro batches of one row, give the weights of all four rows at once."""
    script = tmp_path / "two.py"
    script.write_text(TWO_PROCESSES)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script, tmp_path],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert_same(load_file(tmp_path / "model.safetensors"), by_hand())
    assert json.loads((tmp_path / "config.json").read_text())["memory_epsilon"] == 0.5
