"""The lab's runs by name: `python -m lab train NAME`, or `selattn train lab.runs:NAME`.

c4-d12-selective            the paper's language models: model size d, and the kind: standard, selective, memory
c4-d12-context1024-memory   the context-size experiments, with their batch of 128
c4-d12-all-local-32         the baselines of table A.8, and sparse attention
c4-d12-heads24-standard     standard attention with more heads
c4-d12-without-shift        the ablations
c4-t5-base-selective        T5 at the paper's sizes; t5-tiny-selective is for a laptop
copy-selective              the synthetic tasks at the paper's scale; copy-small-selective is for a laptop
zoo-memory                  the models of the zoo; see docs/training.md for the text that it has
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from lab import t5
from lab.scales import KINDS, LAPTOP, PAIR, PAPER, SELECTIVE, STANDARD, Scale
from lab.tasks import Copy, Parity, Task, VariableAssignment
from selattn.cli import train as command
from selattn.cli._options import Parser
from selattn.errors import SelattnError, advice, shortened
from selattn.training import presets
from selattn.training.config import (
    Batching,
    Checkpoints,
    Evaluation,
    Optimizer,
    RunConfig,
    Schedule,
    TextData,
)
from selattn.training.presets import KINDS as MODELS
from selattn.training.presets import size

Runs = dict[str, Callable[[], RunConfig]]

SHORT = 65_536  # steps of the paper's experiments on self-impact, and of its synthetic tasks
# Settings that make of a run of the zoo what it had before: the paper's learned positions, and 3 million tokens.
YOUNG = ("model.positions=learned", "schedule.steps=1500", "evaluation.every=100")

_TASKS: dict[str, Task] = {
    "variable-assignment": VariableAssignment(variables=3, values=1000, assignments=128),
    "variable-assignment-10x10": VariableAssignment.ten_by_ten(),
    "copy": Copy(),
    "parity": Parity(),
}
# For minutes on a laptop, where the two kinds of attention are still told apart by Variable Assignment.
SMALL_ASSIGNMENT = VariableAssignment(variables=3, values=100, assignments=16)


def language_model(name: str, scale: Scale, kind: Any, **settings: Any) -> RunConfig:
    """A language model of a scale, named."""
    return dataclasses.replace(scale.run(kind, **settings), name=name)


def _paper() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, kind or settings of the model, and settings of `Scale.run`, of the paper's language models."""
    for d in PAPER.sizes:
        for kind in KINDS:
            yield f"d{d}-{kind}", kind, {"d": d}
    for context in PAPER.contexts:
        for kind in KINDS:
            yield f"d12-context{context}-{kind}", kind, {"context": context, "batch": PAPER.context_batch}
    for window in PAPER.windows:
        local = f"local:{window}"
        yield f"d12-all-local-{window}", {"attention": [local]}, {}
        yield f"d12-local-global-{window}", {"attention": [local] * 3 + [STANDARD]}, {}
    for context in PAPER.contexts:  # Child et al.'s strides are near the root of the context; the paper gives none
        for sparse in ("strided:32", "fixed:32:8"):
            name = f"d12-context{context}-{sparse.partition(':')[0]}"
            yield name, {"attention": [sparse]}, {"context": context, "batch": PAPER.context_batch}
    for d in (8, 12, 16):
        for heads in (d + d // 4, d + d // 2, 2 * d):
            yield f"d{d}-heads{heads}-standard", STANDARD, {"d": d, "num_attention_heads": heads}
    for d in (8, 12):
        yield f"d{d}-separate", SELECTIVE, {"d": d, "selection_source": "separate"}
    for d in (10, 12, 14, 16, 18, 26):
        for name, shift in (("short", True), ("without-shift", False)):
            yield f"d{d}-{name}", SELECTIVE, {"d": d, "steps": SHORT, "selection_shift": shift}
    for d in (12, 14, 16, 18, 20, 24):
        yield f"d{d}-without-bos-constraint", SELECTIVE, {"d": d, "selection_protect_first": False}
    for d in (12, 14, 18):
        yield f"d{d}-without-self-constraint", SELECTIVE, {"d": d, "selection_protect_self": False}
    yield "d12-without-relu", SELECTIVE, {"selection_relu": False}  # diverges


def zoo_model(name: str, kind: str, context: int) -> RunConfig:
    """d=3 on 15 million tokens, small enough for a laptop and for a repository: the long run of the laptop scale.

    Unlike in the paper the vocabulary is tied to the output, and a step sees only 2,048 tokens: where tokens are few,
    more steps learn more than larger ones. Positions are rotary: F grows with distance, and so gives a young selective
    model with learned positions a recency that its standard rival lacks. `YOUNG` makes the paper's positions of it.
    """
    run = language_model(name, LAPTOP, kind, context=context, steps=LAPTOP.long_steps)
    assert isinstance(run.data, TextData)
    return dataclasses.replace(run, data=dataclasses.replace(run.data, source=TextData().source))


def task_at_paper_scale(name: str, task: Task, kind: str) -> RunConfig:
    """A run of sections A.1 and A.2."""
    return RunConfig(
        name,
        data=task,
        model=size(3) | MODELS[kind],
        batch=Batching(size=2048),
        schedule=Schedule(steps=SHORT),
        evaluation=Evaluation(every=500, rows=2048, batch=256),
    )


def small_task(
    name: str,
    task: Task,
    kind: str,
    d: int = 2,
    *,
    lr: float,
    steps: int,
    batch: int,
    evaluate: int,
    target: float | None = None,
) -> RunConfig:
    """A run for a laptop. Two layers are enough for these tasks, and three times as fast as the paper's three."""
    return RunConfig(
        name,
        data=task,
        model=size(d) | MODELS[kind],
        batch=Batching(size=batch),
        optimizer=Optimizer(lr=lr),
        schedule=Schedule(steps=steps, warmup=20),
        evaluation=Evaluation(every=evaluate, rows=1024, batch=256, target=target),
        checkpoints=Checkpoints(every=2 * evaluate),
        log_every=5,
    )


# Variable Assignment takes the same steps with both kinds, which can be compared at each; others end when solved.
_ASSIGNMENT: dict[str, Any] = {"lr": 2e-3, "steps": 200, "batch": 256, "evaluate": 25}
_SMALL: dict[str, dict[str, Any]] = {
    "variable-assignment": {"task": SMALL_ASSIGNMENT, **_ASSIGNMENT},
    "copy": {"task": Copy(), "lr": 3e-3, "steps": 4_000, "batch": 64, "evaluate": 100, "target": 1.0},
    "parity": {"task": Parity(), "lr": 2e-3, "steps": 400, "batch": 64, "evaluate": 25, "target": 1.0},
}


def _of_pairs(make: Callable[..., RunConfig], runs: dict[str, dict[str, Any]]) -> Runs:
    """`NAME-KIND` for a selective and a standard model of each."""
    return {
        f"{name}-{kind}": partial(make, f"{name}-{kind}", kind=kind, **settings)
        for name, settings in runs.items()
        for kind in reversed(PAIR)
    }


ZOO: Runs = {
    **{f"zoo-{kind}": partial(zoo_model, f"zoo-{kind}", kind, LAPTOP.context) for kind in KINDS},
    "zoo-memory-2048": partial(zoo_model, "zoo-memory-2048", "memory", 2048),
    **_of_pairs(small_task, {"zoo-variable-assignment": {"task": SMALL_ASSIGNMENT, "d": 3, **_ASSIGNMENT}}),
}
GROUPS: dict[str, Runs] = {
    "The paper's language models": {
        f"c4-{name}": partial(language_model, f"c4-{name}", PAPER, kind, **settings)
        for name, kind, settings in _paper()
    },
    "T5, with span corruption": t5.RUNS,
    "Synthetic tasks": {
        **_of_pairs(task_at_paper_scale, {name: {"task": task} for name, task in _TASKS.items()}),
        **_of_pairs(small_task, {f"{name}-small": settings for name, settings in _SMALL.items()}),
    },
    "The zoo": ZOO,
}
RUNS: Runs = {name: run for group in GROUPS.values() for name, run in group.items()}


def find_run(name: str) -> RunConfig:
    """The run of that name, the lab's or the library's; for a mistyped one the nearest is suggested."""
    if name in RUNS:
        return RUNS[name]()
    if name in presets.RUNS:
        return presets.find_run(name)
    hint = advice(name, [*RUNS, *presets.RUNS], "see 'python -m lab train --list'")
    raise SelattnError(f"unknown run {shortened(name)!r}; {hint}")


def main(argv: Sequence[str]) -> int:
    """`python -m lab train`: list, show or train, with the options of `selattn train`."""
    parser = Parser(prog="python -m lab", description=__doc__)
    command.add_parser(parser.add_subparsers())
    return command.carry_out(parser.parse_args(["train", *argv]), find_run, GROUPS)
