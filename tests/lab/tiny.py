"""Trainings of a second, and an experiment on them."""

import dataclasses

from lab import experiments
from lab.engine import run
from lab.engine.experiment import Experiment, with_seeds
from lab.engine.records import Cell, Claim, Measured
from lab.tasks import VariableAssignment
from selattn.training.config import Batching, Checkpoints, Evaluation, Optimizer, RunConfig, Schedule

MODEL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}


def tiny_run(kind="selective", **changes):
    made = RunConfig(
        f"tiny-{kind}",
        data=VariableAssignment(variables=2, values=5, assignments=3),
        model=MODEL | {"attention": [kind]},
        optimizer=Optimizer(lr=3e-3),
        schedule=Schedule(steps=4, warmup=1),
        batch=Batching(size=4),
        evaluation=Evaluation(every=2, rows=8, batch=4),
        checkpoints=Checkpoints(every=2),
        log_every=2,
    )
    return dataclasses.replace(made, **changes)


def needs(scale, seeds):
    return with_seeds({kind: tiny_run(kind) for kind in ("standard", "selective")}, seeds)


def evaluate(lab):
    cells = [Cell("loss", kind, lab.losses(kind), paper=2.5) for kind in ("standard", "selective")]
    return Measured(tuple(cells), (Claim("It learns.", lab.losses("selective"), "loss", 100.0, "below"),), ("A note.",))


TINY = Experiment("tiny", "Table 0", "a tiny experiment", needs, evaluate)


def only(monkeypatch, experiment=TINY):
    """Let this be the one experiment that there is."""
    for place in (experiments, run):
        monkeypatch.setattr(place, "EXPERIMENTS", {"tiny": experiment})
