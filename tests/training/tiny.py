"""A run that takes a second or two, and what the tests compare of two runs."""

import dataclasses

from safetensors.torch import load_file

from lab.tasks import VariableAssignment
from selattn.training import RunConfig, folder
from selattn.training.config import Batching, Checkpoints, Evaluation, Optimizer, Schedule

MODEL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8, "memory_epsilon": 0.1}


def tiny(**changes):
    """Dropout makes the state of the random numbers matter; the log and the checkpoints fall on different steps."""
    run = RunConfig(
        "tiny",
        data=VariableAssignment(variables=2, values=5, assignments=3),
        model=MODEL | {"hidden_dropout": 0.1},
        optimizer=Optimizer(lr=3e-3),
        schedule=Schedule(steps=12, warmup=2),
        batch=Batching(size=8, micro=4),
        evaluation=Evaluation(every=5, rows=10, batch=4),
        checkpoints=Checkpoints(every=4),
        log_every=3,
    )
    return dataclasses.replace(run, **changes)


def weights(run_folder):
    return load_file(run_folder / "model" / "model.safetensors")


def log(run_folder):
    """The log without its wall-clock fields."""
    records = folder.read_log(run_folder / folder.LOG)
    return [{name: value for name, value in record.items() if name != "wall"} for record in records]


def same_run(one, other):
    """Bit for bit."""
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)
    assert log(one) == log(other)
