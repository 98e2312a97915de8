"""Two devices are one device with the same global batch: data, losses, memory term, folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selattn.errors import SelattnError
from selattn.training import folder, train
from selattn.training.config import Batching
from selattn.training.datasets import Share, StepBatches
from tests.training.tiny import log, weights
from tests.training.two_devices import losses, run

ROOT = Path(__file__).parents[2]


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(0, 10))
def test_devices_share_each_step_out_without_overlap(micro, accumulate, devices, step):
    shares = [Share(micro, accumulate, rank, devices) for rank in range(devices)]
    taken = [sample for share in shares for samples in share.samples(step) for sample in samples]
    batch = micro * accumulate * devices
    assert sorted(taken) == list(range(step * batch, (step + 1) * batch))


@given(st.integers(0, 6), st.integers(1, 3))
def test_resuming_takes_up_where_the_run_was(start, accumulate):
    share = Share(2, accumulate)
    whole, rest = list(StepBatches(share, 6)), list(StepBatches(share, 6, start))
    assert rest == whole[start * accumulate :]
    assert len(StepBatches(share, 6, start)) == len(whole)


def test_micro_batches_and_devices_divide_the_batch():
    assert Batching(12).split(3) == (4, 1)
    assert Batching(12, micro=2).split(3) == (2, 2)
    for batch, devices in ((Batching(12, micro=5), 1), (Batching(12), 5), (Batching(2), 3)):
        with pytest.raises(SelattnError, match="cannot be shared out"):
            batch.split(devices)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    path = tmp_path_factory.mktemp("one") / "run"
    train(run(), path)
    return path


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    path = tmp_path_factory.mktemp("two") / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run(
        [*command, "-m", "tests.training.two_devices", str(path)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=280,
        capture_output=True,
    )
    return path


def close(one, two):
    """Everything that was logged, and all weights, but for rounding."""
    assert len(log(one)) == len(log(two))
    for ours, theirs in zip(log(one), log(two), strict=True):
        assert ours == approximately(theirs)
    theirs = weights(two)
    for name, value in weights(one).items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-4, atol=1e-5)


def approximately(value):
    if isinstance(value, dict):
        return {name: approximately(inner) for name, inner in value.items()}
    return [approximately(inner) for inner in value] if isinstance(value, list) else pytest.approx(value, rel=1e-4)


def test_two_processes_train_as_one(one, two):
    close(one, two)
    assert all(record["memory_loss"] > 0 for record in log(two) if "loss" in record)


def test_one_process_goes_on_where_two_have_stopped(one, two, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(two, path)
    shutil.rmtree(path / "model")
    folder.delete(path / "checkpoint-12")
    train(run(), path, resume=True)
    close(one, path)


def test_a_sharded_model_trains_as_a_whole_one(two):
    """`fully_shard` on our model: loss, its plain part and the memory term, over a few steps."""
    torch.testing.assert_close(torch.tensor(json.loads((two / "sharded.json").read_text())), torch.tensor(losses(0, 1)))
